"""Who owns each nanosecond: the exclusive partition of a window among events that nest and overlap."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

NOBODY = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Half-open intervals that tile a window without gap or overlap; `owner` is an event's index or NOBODY.

    Neighbours differ in their owner unless a cut (`overlay`) lies between them.
    """

    start_ns: Int64s
    end_ns: Int64s
    owner: Int64s

    @property
    def duration_ns(self) -> Int64s:
        """Lengths; they sum to the window exactly."""
        return self.end_ns - self.start_ns

    def owner_at(self, times_ns: Int64s) -> Int64s:
        """The owner at each time; NOBODY outside of the window."""
        if not len(self.start_ns):
            return np.full(np.shape(times_ns), NOBODY, np.int64)
        index = np.searchsorted(self.start_ns, times_ns, side="right") - 1
        inside = (index >= 0) & (times_ns < self.end_ns[-1])
        return np.where(inside, self.owner[np.maximum(index, 0)], NOBODY)


def own(start_ns: Int64s, end_ns: Int64s, priority: Int64s, window: tuple[int, int]) -> Segments:
    """At each moment of the window the owner is the running event of the highest priority; among equals the one that
    started last (the innermost, for events that nest), among those the one that comes last in the arrays.

    Integer arithmetic only: the segments' lengths sum to the window exactly, whatever the events overlap.
    """
    first, last = window
    relevant = np.flatnonzero((end_ns > start_ns) & (end_ns > first) & (start_ns < last))
    order = relevant[np.argsort(start_ns[relevant], kind="stable")]
    begins, ends, ranks = start_ns[order].tolist(), end_ns[order].tolist(), priority[order].tolist()
    cuts: list[int] = []
    owners: list[int] = []
    running: list[tuple[int, int, int]] = []  # (-priority, -position, end): positions ascend with the start
    cursor = first

    def advance(until: int) -> None:
        nonlocal cursor
        while cursor < until:
            while running and running[0][2] <= cursor:
                heapq.heappop(running)
            owner = -running[0][1] if running else NOBODY
            if not owners or owners[-1] != owner:
                cuts.append(cursor)
                owners.append(owner)
            cursor = min(running[0][2], until) if running else until

    for position, begin in enumerate(begins):
        if begin > cursor:
            advance(begin)
        heapq.heappush(running, (-ranks[position], -position, ends[position]))
    advance(last)
    starts = np.array(cuts, np.int64)
    positions = np.array(owners, np.int64)
    mapping = np.append(order, NOBODY)  # the last entry answers for NOBODY = -1
    return Segments(
        start_ns=starts,
        end_ns=np.append(starts[1:], last) if len(starts) else starts,
        owner=mapping[positions] if len(positions) else positions,
    )


def overlay(base: Segments, other: Segments) -> tuple[Segments, Int64s]:
    """`base` cut also at the borders of `other`, and the owner in `other` of each piece."""
    if not len(base.start_ns):
        return base, base.owner
    inside = (other.start_ns > base.start_ns[0]) & (other.start_ns < base.end_ns[-1])
    starts = np.union1d(base.start_ns, other.start_ns[inside])
    ends = np.append(starts[1:], base.end_ns[-1])
    pieces = Segments(start_ns=starts, end_ns=ends, owner=base.owner_at(starts))
    return pieces, other.owner_at(starts)


def parents(start_ns: Int64s, end_ns: Int64s, lane: NDArray[np.int32]) -> Int64s:
    """The innermost event of the same lane that encloses each event's start; -1 for none.

    The events are ordered by start, an enclosing event first (a Timeline's order).
    """
    found = np.full(len(start_ns), -1, np.int64)
    stacks: dict[int, list[int]] = {}
    ends = end_ns.tolist()
    for event, (begin, where) in enumerate(zip(start_ns.tolist(), lane.tolist(), strict=True)):
        stack = stacks.setdefault(where, [])
        while stack and ends[stack[-1]] <= begin:
            stack.pop()
        if stack:
            found[event] = stack[-1]
        stack.append(event)
    return found
