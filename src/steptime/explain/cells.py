"""The types of a Breakdown: where the time of a step went, in exclusive cells that sum to it exactly.

Definitions of every resource, group and phase: docs/definitions.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

RESOURCES = ("compute", "exposed_communication", "exposed_copy", "idle")

GROUPS = (
    "matmul",
    "attention",
    "convolution",
    "recurrent",
    "normalisation",
    "elementwise",
    "reduction",
    "random",
    "embedding",
    "optimizer",
    "copy",
    "other",
)
"""What a compute cell computes."""

CAUSES = (
    "python",
    "data",
    "sync",
    "garbage_collection",
    "dispatch",
    "launch",
    "allocation",
    "profiler",
    "other",
)
"""Why an idle cell is idle; they stand where a compute cell has its group."""

PHASES = ("data", "forward", "backward", "optimizer", "checkpoint", "other")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One exclusive share of the window.

    `group` is one of GROUPS for compute, one of CAUSES for idle, and names the operation for the exposed resources
    ("all_reduce", "host_to_device"). `ns` is the time over all steps of the window, `events` the number of trace events
    whose recording the cell paid for: what the overhead of tracing is proportional to.
    """

    resource: str
    group: str
    phase: str
    ns: int
    events: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakdown:
    """The window's time over all its steps, split into cells; `sum(cell.ns) == total_ns` always holds.

    `window` says what was taken as the step: "steptime.step" or "ProfilerStep" (annotations), or "trace" (everything).
    `each` holds the single steps, in order; it is empty in a single step.

    Raises:
        ValueError: the cells do not sum to `total_ns`.
    """

    total_ns: int
    steps: int
    cells: tuple[Cell, ...]
    window: str = "trace"
    rank: int = 0
    each: tuple[Breakdown, ...] = ()

    def __post_init__(self) -> None:
        found = sum(cell.ns for cell in self.cells)
        if found != self.total_ns:
            raise ValueError(f"the cells sum to {found} ns, the window is {self.total_ns} ns")

    @property
    def step_ns(self) -> int:
        """Mean time of a step, rounded to ns."""
        return round(self.total_ns / self.steps) if self.steps else 0

    def ns(self, *, resource: str | None = None, group: str | None = None, phase: str | None = None) -> int:
        """Time of all cells that match, over all steps."""
        return sum(
            cell.ns
            for cell in self.cells
            if resource in (None, cell.resource) and group in (None, cell.group) and phase in (None, cell.phase)
        )

    def to_json(self) -> dict[str, Any]:
        """`total_ns` and the cells' `ns` are over all `steps`; `step_ns` is the mean. msgspec.convert reads it back."""
        return {
            "total_ns": self.total_ns,
            "steps": self.steps,
            "step_ns": self.step_ns,
            "window": self.window,
            "rank": self.rank,
            "cells": [
                {
                    "resource": cell.resource,
                    "group": cell.group,
                    "phase": cell.phase,
                    "ns": cell.ns,
                    "events": cell.events,
                }
                for cell in self.cells
            ],
            "each_step_ns": [step.total_ns for step in self.each],
        }


def add_up(parts: Iterable[Breakdown]) -> Breakdown:
    """One Breakdown over several steps (or ranks): equal cells are added, the parts are kept in `each`.

    Raises:
        ValueError: no parts.
    """
    each = tuple(parts)
    if not each:
        raise ValueError("nothing to add up")
    sums: dict[tuple[str, str, str], list[int]] = {}
    for part in each:
        for cell in part.cells:
            total = sums.setdefault((cell.resource, cell.group, cell.phase), [0, 0])
            total[0] += cell.ns
            total[1] += cell.events
    order = sorted(sums, key=lambda key: (RESOURCES.index(key[0]), -sums[key][0], key))
    return Breakdown(
        total_ns=sum(part.total_ns for part in each),
        steps=sum(part.steps for part in each),
        cells=tuple(
            Cell(resource=key[0], group=key[1], phase=key[2], ns=sums[key][0], events=sums[key][1]) for key in order
        ),
        window=each[0].window,
        rank=each[0].rank,
        each=each,
    )
