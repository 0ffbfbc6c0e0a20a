"""What every applier works with: undoable replacements, intercepted module calls, the trained modules, the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

Report = Callable[[str, bool, str], None]
"""`report(name, ok, why)`: whether a plan field, named with its section, took effect, and what shows it."""

_ABSENT = object()


@final
class Patches:
    """Attributes replaced in other people's classes and modules, and how to put them back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name` becomes `value`; an attribute that was only inherited is removed again by `undo`."""
        saved = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)

        def back() -> None:
            if saved is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, saved)

        self._undo.append(back)

    def on_undo(self, action: Callable[[], None]) -> None:
        """Runs `action` when the patches are taken back."""
        self._undo.append(action)

    def undo(self) -> None:
        """Puts everything back, the latest first; a second call does nothing."""
        while self._undo:
            self._undo.pop()()


@final
@dataclass(frozen=True, kw_only=True)
class Ground:
    """Handed to each applier.

    Attributes:
        report: tells whether a field took effect; may be called again later, the last call counts.
        patches: of this section alone, so that a failing section can be taken back.
        roots: the trained modules, found while the script runs.
        plan: the whole plan, for appliers that depend on another section.
    """

    report: Report
    patches: Patches
    roots: Any
    plan: Mapping[str, Mapping[str, Any]]

    def after_steps(self, count: int, action: Callable[[], None]) -> None:
        """Runs `action` once, right after the `count`-th optimizer step of the process."""
        after_steps(self.patches, count, action)


def after_steps(patches: Patches, count: int, action: Callable[[], None]) -> None:
    """As `Ground.after_steps`."""
    seen = 0

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal seen
        seen += 1
        # torch iterates over its hooks here: one must not remove itself, so it stays and counts on
        if seen == count:
            action()

    handle = register_optimizer_step_post_hook(hook)
    patches.on_undo(handle.remove)


def seconds_since(start_ns: int) -> float:
    """Seconds since a reading of `time.perf_counter_ns`."""
    return (time.perf_counter_ns() - start_ns) / 1e9


def is_compiling() -> bool:
    """Whether torch.compile is tracing this very call."""
    return torch.compiler.is_compiling()
