"""The script's own torch profiler comes first: a profile started inside another silently empties the outer one.

Both of torch's interfaces go through `torch.autograd.profiler.profile`: `_prepare_trace` when one begins (a schedule's
warm-up included) and `__exit__` when it ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class ScriptsProfiler:
    """Whether the script is profiling right now."""

    def __init__(self, *, ours_running: Callable[[], bool], make_way: Callable[[], None]) -> None:
        """`make_way` is called when the script is about to start its profile while ours runs."""
        import torch

        self.active = 0
        self.seen = 0
        legacy: Any = torch.autograd.profiler.profile
        prepare, leave = legacy._prepare_trace, legacy.__exit__
        theirs: set[int] = set()

        @functools.wraps(prepare)
        def prepare_trace(profile: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(profile, "_steptime_own", False) or (ours_running() and _made_by_us()):
                profile._steptime_own = True
                return prepare(profile, *args, **kwargs)
            if ours_running():
                make_way()
            theirs.add(id(profile))
            self.active, self.seen = len(theirs), self.seen + 1
            return prepare(profile, *args, **kwargs)

        @functools.wraps(leave)
        def exit_profile(profile: Any, *args: Any, **kwargs: Any) -> Any:
            theirs.discard(id(profile))
            self.active = len(theirs)
            return leave(profile, *args, **kwargs)

        legacy._prepare_trace, legacy.__exit__ = prepare_trace, exit_profile


def _made_by_us() -> bool:
    import sys

    frame = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith("/steptime/agent/trace.py"):
            return True
        frame = frame.f_back
    return False
