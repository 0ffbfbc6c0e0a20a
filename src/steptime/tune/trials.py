"""What tune needs of a script: to explain it, to hold two of it at a gate, and to let it train under other seeds.

`Trials` is the interface (the tests put synthetic scripts behind it); scripts.py has the real one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from steptime.explain.explanation import Explanation
from steptime.explain.remedies import Remedy
from steptime.plan import Plan

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How a trial runs the script: a Plan, and files of the user's own remedies."""

    plan: Plan = field(default_factory=Plan)
    extra: tuple[Path, ...] = ()

    def plus(self, remedy: Remedy) -> Setup:
        """The setup with the remedy added.

        Raises:
            SteptimeError: the Plan does not take the remedy's patch.
        """
        extra = (*self.extra, remedy.extra) if remedy.extra is not None else self.extra
        return Setup(plan=self.plan.with_patch(remedy.patch), extra=extra)

    @property
    def changes_nothing(self) -> bool:
        """Whether the script runs as it is."""
        return not self.extra and not self.plan.difference()


UNCHANGED = Setup()


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What one run of some steps left.

    `losses` by call site of `backward`, one entry a step, NaN where it was not reached; of several ranks their mean.
    `audit` and `applied` are the first rank's (ARCHITECTURE.md, `events.jsonl`). `failed`: why the run cannot be used.
    """

    losses: Mapping[str, Floats]
    audit: Mapping[str, Any] = field(default_factory=dict)
    applied: Sequence[Mapping[str, Any]] = ()
    seeded: bool | None = True
    skipped_steps: int = 0
    failed: str = ""

    @property
    def refused(self) -> str:
        """Why a change was not taken up, empty when all were; the reasons of all that were not, one after the other."""
        why: dict[str, str] = {}
        for event in self.applied:
            # a field may be reported late; its last report counts
            why[str(event["name"])] = "" if event["ok"] else str(event["why"])
        return "; ".join(f"{name}: {reason}" for name, reason in why.items() if reason)


class SideEndedError(Exception):
    """The script of a side cannot run any more blocks; says why."""


class Side(Protocol):
    """One side of a duel: the script, held at a step boundary."""

    def block(self, steps: int, *, settle: int = 1) -> float:
        """Runs `settle` steps that do not count and `steps` that do; seconds a counted step (of the slowest rank).

        Raises:
            SideEndedError: the script failed.
        """
        ...

    def compile_s(self) -> float:
        """Seconds that the first steps took beyond what a step takes since: compilation and other warm-up."""
        ...

    def refused(self) -> str:
        """Why a change was not taken up, or empty (`Trained.refused`)."""
        ...

    def close(self) -> None:
        """Ends the script."""
        ...


@dataclass(frozen=True, kw_only=True)
class Explained:
    """The unchanged script: its explanation, and what tune must know to plan its trials.

    `start_s` is the time from launch to the first step, `python` the script's interpreter.
    """

    explanation: Explanation
    start_s: float
    python: str = ""
    steps_seen: int = 0
    cores: int = 1


class Trials(Protocol):
    """The script, as tune uses it."""

    def explain(self, setup: Setup = UNCHANGED) -> Explained:
        """Measures and explains the script under a setup: the unchanged script unless told otherwise.

        Raises:
            SteptimeError: it failed, or no step was found.
        """
        ...

    def open(self, setup: Setup) -> Side:
        """Starts the script under a setup and holds it after its first step.

        Raises:
            SideEndedError: it failed before.
        """
        ...

    def train(self, setup: Setup, seed_offsets: Sequence[int], steps: int) -> list[Trained]:
        """Runs the script for `steps` steps once for each offset of its seeds; as many at a time as fit."""
        ...
