"""Waits, at no cost, until this process has imported torch; then starts the recorder.

A finder at the head of `sys.meta_path` sees `torch` (and `numpy.random`, whose seeds we offset) being imported and
wraps its loader, so that we wake when the module has finished executing and before the importing line goes on. That
holds for `import torch`, `from torch import nn` and `import lightning` alike.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from steptime.agent.process import helper_kind
from steptime.agent.session import Session, session_from_environment

_armed: set[str] = set()


def arm() -> None:
    """Arms this process for the session named in the environment; without one, and in helpers, does nothing.

    May be called more than once (the sitecustomize, the `.pth` and the one-line import can all be there).
    """
    if "STEPTIME_SESSION" not in os.environ or os.environ["STEPTIME_SESSION"] in _armed or helper_kind(sys.orig_argv):
        return
    session = session_from_environment()
    if session is None:
        return
    _armed.add(os.environ["STEPTIME_SESSION"])
    from steptime.agent import seeds

    seen = seeds.SeedCalls(offset=session.seed_offset)
    seeds.patch_random(seen)
    if session.redirect:
        from steptime.agent import redirect

        redirect.install(session)
    when_imported("numpy.random", lambda: seeds.patch_numpy(seen))
    when_imported("torch", lambda: _wake(session, seen))


def when_imported(name: str, callback: Callable[[], None]) -> None:
    """Calls `callback` once, at the end of the import of `name`, or now if it has been imported."""
    module = sys.modules.get(name)
    # a module that is still executing (the one-line import can stand inside a package) is waited for
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        callback()
    else:
        sys.meta_path.insert(0, _Waker(name, callback))


class _Waker(importlib.abc.MetaPathFinder):
    """Finds nothing itself: wraps the loader that the finders behind it return for one module."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name = name
        self._callback = callback
        self._busy = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name or self._busy:
            return None
        self._busy = True
        try:
            spec = _find_behind(self, fullname, path, target)
        finally:
            self._busy = False
        if spec is not None and spec.loader is not None:
            spec.loader = _WakingLoader(spec.loader, self)
        return spec

    def wake(self) -> None:
        """The module is there: this finder has done its work."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._callback()


def _find_behind(
    ours: _Waker, fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if finder is ours or find is None:
            continue
        spec = find(fullname, path, target)
        if spec is not None:
            return spec
    return None


class _WakingLoader(importlib.abc.Loader):
    """The module's own loader, which calls us after it has executed the module; then it stands aside."""

    def __init__(self, loader: Any, waker: _Waker) -> None:
        self._loader = loader
        self._waker = waker

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._waker.wake()


def _wake(session: Session, seen: Any) -> None:
    try:
        from steptime.agent.recorder import start_recording

        start_recording(session, seen)
    except Exception:  # the script comes first: it runs unmeasured, and the host reads why
        import contextlib
        import traceback

        with contextlib.suppress(OSError), open(f"{session.folder}/fault-{os.getpid()}.txt", "w") as file:
            file.write(traceback.format_exc())
        if session.mode == "trial":
            from steptime.agent.ending import abandon_trial

            abandon_trial(traceback.format_exc().strip().splitlines()[-1])
