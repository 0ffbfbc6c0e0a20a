"""A trial leaves no mark: what the script would write goes to an overlay folder, and is read back from there.

    /data/run/model.pt  ->  <redirect>/data/run/model.pt

Writes go to the overlay; reads prefer the overlay's copy; appending and updating copies the file there first.
Exempt: temporary folders, /dev, /proc, the session folder, caches (torch, triton, steptime, XDG), pipes and sockets.
What goes round Python's functions (a C library that opens a path) cannot be moved: writes that CPython's audit events
show are listed in the session folder's `escaped-<pid>.txt`; what no audit event shows is beyond us (docs/attach.md).
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steptime.agent.session import Session

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CACHES = (
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "XDG_CACHE_HOME",
    "HF_HOME",
    "TORCH_HOME",
    "PYTHONPYCACHEPREFIX",
)


class Overlay:
    """Where a path really lies."""

    def __init__(self, root: str, exempt: tuple[str, ...], work: tuple[str, ...], session: str) -> None:
        self.root = os.path.abspath(root)
        self._ours = (os.path.join(os.path.abspath(session), ""), os.path.join(self.root, ""))
        self._work = tuple(os.path.join(path, "") for path in work)
        self._exempt = tuple(os.path.join(os.path.abspath(path), "") for path in exempt)
        self.inside = threading.local()

    def moved(self, path: Any) -> str | None:
        """The overlay's name of a path, or None when the path is exempt or no path."""
        if isinstance(path, bool) or not isinstance(path, (str, bytes, os.PathLike)):
            return None
        name = os.path.abspath(os.fsdecode(path))
        below = name + os.sep
        if below.startswith(self._ours) or name.endswith(".pyc"):
            return None
        if below.startswith(self._exempt) and not below.startswith(self._work):
            return None
        return self.root + name

    def for_reading(self, path: Any) -> Any:
        """The overlay's copy when there is one."""
        moved = self.moved(path)
        return moved if moved is not None and _lexists(moved) else path

    def for_writing(self, path: Any, *, keep: bool) -> Any:
        """The overlay's name, with its folder made when the original's is there; `keep` copies the content first."""
        moved = self.moved(path)
        if moved is None:
            return path
        name = os.path.abspath(os.fsdecode(path))
        try:
            mode = _stat(name).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                return path  # a pipe or a device is no file of a run
        except OSError:
            mode = 0
        parent = os.path.dirname(name)
        if _lexists(parent) or _lexists(self.root + parent):
            _makedirs(os.path.dirname(moved), exist_ok=True)
        if keep and stat.S_ISREG(mode) and not _lexists(moved):
            shutil.copyfile(name, moved)
        return moved


_stat = os.stat
_lexists = os.path.lexists
_makedirs = os.makedirs


def install(session: Session) -> None:
    """Puts the overlay under this process's file functions. Raises OSError when the folder cannot be made."""
    assert session.redirect is not None
    _makedirs(session.redirect, exist_ok=True)
    overlay = Overlay(session.redirect, _exempt(session), _work_folders(), session.folder)
    _patch_open(overlay)
    _patch_changes(overlay)
    _patch_queries(overlay)
    sys.addaudithook(_watch(overlay, session))


def _exempt(session: Session) -> tuple[str, ...]:
    home = os.path.expanduser("~")
    folders = [session.folder, tempfile.gettempdir(), "/dev", "/proc", "/sys", "/run", "/tmp", "/var/tmp"]
    folders += [os.environ[name] for name in CACHES if os.environ.get(name)]
    return (*folders, os.path.join(home, ".cache"), os.path.join(home, ".triton"))


def _work_folders() -> tuple[str, ...]:
    """A script that is itself run in a temporary folder keeps its results there: that folder is not exempt."""
    script = next((a for a in sys.orig_argv[1:] if not a.startswith("-")), "")
    folders = {os.path.abspath(os.getcwd()), os.path.dirname(os.path.abspath(script))}
    shared = {"/", "/tmp", "/var/tmp", os.path.abspath(tempfile.gettempdir())}
    return tuple(sorted(folders - shared))


def _guarded(overlay: Overlay, original: Callable[..., Any], replacement: Callable[..., Any]) -> Any:
    """`replacement` for the script's calls, `original` for those that the overlay makes itself."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(overlay.inside, "yes", False):
            return original(*args, **kwargs)
        overlay.inside.yes = True
        try:
            return replacement(*args, **kwargs)
        finally:
            overlay.inside.yes = False

    return call


def _patch_open(overlay: Overlay) -> None:
    plain_open, os_open = builtins.open, os.open

    def open_moved(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        writes = any(letter in mode for letter in "wax+")
        if not writes:
            return plain_open(overlay.for_reading(file), mode, *args, **kwargs)
        moved = overlay.for_writing(file, keep="a" in mode or "r" in mode)
        if "x" in mode and moved is not file and _lexists(file):
            raise FileExistsError(17, "File exists", os.fspath(file))
        return plain_open(moved, mode, *args, **kwargs)

    def os_open_moved(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if kwargs.get("dir_fd") is not None:
            return os_open(path, flags, *args, **kwargs)
        if not flags & WRITING:
            return os_open(overlay.for_reading(path), flags, *args, **kwargs)
        return os_open(overlay.for_writing(path, keep=not flags & os.O_TRUNC), flags, *args, **kwargs)

    builtins.open = io.open = _guarded(overlay, plain_open, open_moved)
    os.open = _guarded(overlay, os_open, os_open_moved)
    file_io = io.FileIO

    class FileIO(file_io):
        """The raw file class, for those who make one by hand."""

        def __init__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
            writes = any(letter in mode for letter in "wax+")
            moved = overlay.for_writing(file, keep="w" not in mode) if writes else overlay.for_reading(file)
            super().__init__(moved, mode, *args, **kwargs)

    io.FileIO = FileIO  # type: ignore[misc]
    for name in ("save", "load"):
        _torch_paths(overlay, name)
    _safetensors_paths(overlay)


def _torch_paths(overlay: Overlay, name: str) -> None:
    """`torch.save` and `torch.load` open a string path in C++: give them the moved path."""
    from steptime.agent.arm import when_imported

    def patch() -> None:
        torch: Any = sys.modules["torch"]
        original = getattr(torch, name)

        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(obj, overlay.for_writing(f, keep=False), *args, **kwargs)

        @functools.wraps(original)
        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(overlay.for_reading(f), *args, **kwargs)

        moved = save if name == "save" else load
        setattr(torch, name, moved)
        setattr(torch.serialization, name, moved)

    when_imported("torch", patch)


def _safetensors_paths(overlay: Overlay) -> None:
    """Safetensors opens its files in Rust; its Python side takes these two names from its own module."""
    from steptime.agent.arm import when_imported

    def patch() -> None:
        module: Any = sys.modules["safetensors.torch"]
        serialize, reader = module.serialize_file, module.safe_open

        def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
            return serialize(tensors, overlay.for_writing(filename, keep=False), *args, **kwargs)

        module.serialize_file = serialize_file
        module.safe_open = lambda filename, *args, **kwargs: reader(overlay.for_reading(filename), *args, **kwargs)

    when_imported("safetensors.torch", patch)


def _patch_changes(overlay: Overlay) -> None:
    """Making, renaming and removing: inside the overlay only; the original stays."""

    def moved_target(original: Callable[..., Any]) -> Any:
        def make(path: Any, *args: Any, **kwargs: Any) -> Any:
            moved = overlay.moved(path)
            if moved is None:
                return original(path, *args, **kwargs)
            if os.path.isdir(os.fspath(path)) and not os.path.isdir(moved):
                if kwargs.get("exist_ok"):
                    return None
                raise FileExistsError(17, "File exists", os.fspath(path))
            if os.path.isdir(os.path.dirname(os.path.abspath(os.fsdecode(path)))):
                _makedirs(os.path.dirname(moved), exist_ok=True)
            return original(moved, *args, **kwargs)

        return make

    def removed(original: Callable[..., Any]) -> Any:
        """For what must act on the overlay's copy and leave the user's own file as it is."""

        def remove(path: Any, *args: Any, **kwargs: Any) -> Any:
            moved = overlay.moved(path)
            if moved is None or kwargs.get("dir_fd") is not None:
                return original(path, *args, **kwargs)
            if _lexists(moved):
                return original(moved, *args, **kwargs)
            if not _lexists(path):
                return original(path, *args, **kwargs)  # raises what it raises
            return None  # the original stays: a trial removes and alters nothing of the user's

        return remove

    def renamed(original: Callable[..., Any]) -> Any:
        def rename(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            if overlay.moved(source) is None and overlay.moved(target) is None:
                return original(source, target, *args, **kwargs)
            to = overlay.for_writing(target, keep=False)
            here = overlay.for_reading(source)
            if here is source and overlay.moved(source) is not None:
                copied = shutil.copytree if os.path.isdir(source) else shutil.copy2
                return copied(source, to) and None
            try:
                return original(here, to, *args, **kwargs)
            except OSError as problem:
                if problem.errno != 18:  # EXDEV: the temporary folder may be another device
                    raise
                shutil.move(os.fspath(here), to)
                return None

        return rename

    for name, maker in (
        ("mkdir", moved_target),
        ("makedirs", moved_target),
        ("remove", removed),
        ("unlink", removed),
        ("rmdir", removed),
        ("chmod", removed),
        ("chown", removed),
        ("utime", removed),
        ("rename", renamed),
        ("replace", renamed),
    ):
        original = getattr(os, name)
        setattr(os, name, _guarded(overlay, original, maker(original)))
    rmtree = shutil.rmtree
    shutil.rmtree = _guarded(overlay, rmtree, removed(rmtree))  # type: ignore[assignment]
    symlink = os.symlink
    os.symlink = _guarded(
        overlay,
        symlink,
        lambda s, d, *a, **k: symlink(overlay.for_reading(s), overlay.for_writing(d, keep=False), *a, **k),
    )


def _patch_queries(overlay: Overlay) -> None:
    """Whether a path exists, and what a folder holds: overlay first."""

    def query(original: Callable[..., Any]) -> Any:
        def ask(path: Any, *args: Any, **kwargs: Any) -> Any:
            return original(overlay.for_reading(path) if kwargs.get("dir_fd") is None else path, *args, **kwargs)

        return ask

    for name in ("stat", "lstat", "access"):
        setattr(os, name, _guarded(overlay, getattr(os, name), query(getattr(os, name))))
    listdir = os.listdir

    def list_both(path: Any = ".") -> Any:
        moved = overlay.moved(path)
        if moved is None or not os.path.isdir(moved):
            return listdir(path)
        beneath = listdir(path) if os.path.isdir(path) else []
        return sorted({*beneath, *listdir(moved)})

    os.listdir = _guarded(overlay, listdir, list_both)
    scandir = os.scandir

    def scan_both(path: Any = ".") -> Any:
        moved = overlay.moved(path)
        if moved is None or not os.path.isdir(moved):
            return scandir(path)
        found: dict[str, Any] = {}
        for folder in (path, moved):  # the overlay's entry of a name replaces the original's
            if os.path.isdir(folder):
                with scandir(folder) as entries:
                    found |= {entry.name: entry for entry in entries}
        return _Entries(list(found.values()))

    os.scandir = _guarded(overlay, scandir, scan_both)


class _Entries:
    """What `os.scandir` returns: an iterator that can be closed and used as a context."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_problem: object) -> None:
        self.close()

    def close(self) -> None:
        """Forgets the entries that are left."""
        self._entries = iter(())


def _watch(overlay: Overlay, session: Session) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook: a file opened for writing outside the overlay is reported once, by name."""
    reported: set[str] = set()
    journal = Path(session.folder) / f"escaped-{os.getpid()}.txt"
    plain_open = os.open

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect":
            path = args[0]
            args = (path, None, os.O_RDWR)
        elif event != "open" or not isinstance(args[2], int) or not args[2] & WRITING:
            return
        path = args[0]
        if path == ":memory:" or not isinstance(path, (str, bytes)) or overlay.moved(path) is None:
            return
        name = os.path.abspath(os.fsdecode(path))
        if name in reported or name.startswith(overlay.root):
            return
        reported.add(name)
        descriptor = plain_open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(descriptor, name.encode() + b"\n")
        os.close(descriptor)

    return hook
