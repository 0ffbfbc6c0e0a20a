"""A step's time in exclusive cells: resource x (group or cause) x phase, exact to the nanosecond."""

from __future__ import annotations

import numpy as np

from steptime.explain.account import Account, account
from steptime.explain.cells import PHASES, RESOURCES, Breakdown, Cell, add_up
from steptime.timeline import Timeline


def break_down(timeline: Timeline, window: tuple[int, int] | None = None) -> Breakdown:
    """The Breakdown of a Timeline over its steps, or over an explicit window (start and end in ns, half-open).

    Several ranks are added up (`total_ns` is then over all ranks and steps, `each` holds one Breakdown a rank).

    Raises:
        ValueError: a timeline without events.
    """
    ranks = timeline.ranks
    if not ranks:
        raise ValueError("a timeline without events has no step")
    parts = [tabulate(account(timeline.of_rank(rank), window)) for rank in ranks]
    return parts[0] if len(parts) == 1 else add_up(parts)


def tabulate(accounts: Account) -> Breakdown:
    """The account's pieces summed into cells, a Breakdown a step in `each`; without a window, nothing."""
    rank = int(accounts.timeline.rank[0]) if len(accounts.timeline) else 0
    if not accounts.windows:
        return Breakdown(total_ns=0, steps=0, cells=(), rank=rank)
    keys = np.stack([accounts.step, accounts.resource, accounts.label, accounts.phase])
    unique, inverse = np.unique(keys, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    times = np.zeros(unique.shape[1], np.int64)
    events = np.zeros(unique.shape[1], np.int64)
    np.add.at(times, inverse, accounts.segments.duration_ns)
    np.add.at(events, inverse, accounts.charged)
    cells: list[list[Cell]] = [[] for _ in accounts.windows]
    for (step, resource, label, phase), ns, count in zip(
        unique.T.tolist(), times.tolist(), events.tolist(), strict=True
    ):
        cells[step].append(
            Cell(
                resource=RESOURCES[resource],
                group=accounts.labels[label],
                phase=PHASES[phase],
                ns=ns,
                events=count,
            )
        )
    return add_up(
        Breakdown(
            total_ns=window.end_ns - window.start_ns, steps=1, cells=tuple(of_step), window=window.name, rank=rank
        )
        for window, of_step in zip(accounts.windows, cells, strict=True)
    )
