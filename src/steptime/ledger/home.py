"""Where steptime keeps what outlives a command, and how a file gets there without ever being half there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from steptime.errors import SteptimeError


def steptime_home() -> Path:
    """The folder of the ledger, its columns and the calibrations.

    `$STEPTIME_HOME`, else `$XDG_DATA_HOME/steptime`, else `~/.local/share/steptime`. It need not exist.
    """
    if named := os.environ.get("STEPTIME_HOME"):
        return Path(named).expanduser()
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path("~/.local/share").expanduser()) / "steptime"


def make_folder(folder: Path) -> Path:
    """Create `folder` and its parents.

    Raises:
        SteptimeError: it cannot be made (read-only, no space, a file in its place).
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    return folder


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the whole new one, also after a crash.

    Raises:
        SteptimeError: the content could not be written; `path` is as it was and nothing else is left behind.
    """
    make_folder(path.parent)
    temporary: str | None = None
    try:
        # The name starts with a dot and keeps no suffix: readers list by suffix and never meet an unfinished file.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
        _sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def check_writable(path: Path) -> None:
    """Finds out, before minutes are spent on its content, whether a file can be written; nothing is left behind.

    Raises:
        SteptimeError: its folder is not there or takes no file, or a folder stands in its place.
    """
    if path.is_dir():
        raise SteptimeError("is a folder", where=str(path), mend="name a file")
    try:
        # rights do not tell: a read-only file system refuses root too
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise SteptimeError(
            f"cannot be written ({error.strerror or error})", where=str(path), mend="name a file in a writable folder"
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut; file systems that cannot are no worse than before."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def unwritable(path: Path, error: OSError) -> SteptimeError:
    """The error of a path that could not be written, in the system's own words."""
    return SteptimeError(
        f"cannot be written ({error.strerror or error})",
        where=str(path),
        mend="free space or rights there, or name another folder in STEPTIME_HOME",
    )
