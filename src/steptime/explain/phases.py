"""The phase axis: data, forward, backward, optimizer, checkpoint, other. Rules: docs/definitions.md."""

from __future__ import annotations

import numpy as np

from steptime.explain.cells import PHASES
from steptime.explain.groups import group_of_op
from steptime.explain.host import Host, Window
from steptime.explain.sweep import NOBODY, Int64s, Segments, own

DATA, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, OTHER = range(len(PHASES))

_MARKS = (
    ("enumerate(DataLoader)#", DATA),
    ("steptime.data", DATA),
    ("steptime.checkpoint", CHECKPOINT),
    ("steptime.optimizer", OPTIMIZER),
    ("Optimizer.", OPTIMIZER),
    ("steptime.backward", BACKWARD),
)
"""Annotations of the training thread and the phase that they are."""

_PRIORITY = {DATA: 5, CHECKPOINT: 4, OPTIMIZER: 3, BACKWARD: 2}


def phase_segments(host: Host, windows: tuple[Window, ...]) -> Segments:
    """The phase (index into PHASES) of every moment from the first window's start to the last one's end."""
    if not windows:
        return Segments(start_ns=np.empty(0, np.int64), end_ns=np.empty(0, np.int64), owner=np.empty(0, np.int64))
    t = host.timeline
    lane = host.training_lane
    starts, ends, phases, zeroing = [], [], [], []
    for prefix, phase in _MARKS:
        for event in host.annotations(prefix, lane).tolist():
            starts.append(int(t.start_ns[event]))
            ends.append(int(t.end_ns[event]))
            phases.append(phase)
            zeroing.append(t.text(event).startswith("Optimizer.zero_grad"))
    for begin, end in _backward_runs(host):
        starts.append(begin)
        ends.append(end)
        phases.append(BACKWARD)
        zeroing.append(False)
    known = np.array(phases, np.int64)
    hull = (windows[0].start_ns, max(window.end_ns for window in windows))
    owned = own(
        np.array(starts, np.int64),
        np.array(ends, np.int64),
        np.array([_PRIORITY[phase] for phase in phases], np.int64),
        hull,
    )
    cut = _cut(owned, np.array([window.start_ns for window in windows], np.int64))
    labels = np.append(known, NOBODY)[cut.owner] if len(known) else cut.owner
    zero = np.append(np.array(zeroing, bool), False)[cut.owner]
    return Segments(start_ns=cut.start_ns, end_ns=cut.end_ns, owner=_fill(cut, labels, zero, windows))


def _cut(segments: Segments, borders: Int64s) -> Segments:
    starts = np.union1d(segments.start_ns, borders[(borders > segments.start_ns[0]) & (borders < segments.end_ns[-1])])
    return Segments(start_ns=starts, end_ns=np.append(starts[1:], segments.end_ns[-1]), owner=segments.owner_at(starts))


def _backward_runs(host: Host) -> list[tuple[int, int]]:
    """Stretches of a thread in which autograd runs: its outermost ops in a row, with the time between them.

    Any other outermost op of the thread or of the training thread (gradient clipping, the next forward) ends a stretch,
    unless it is a mere view or allocation (the gradient reducer makes some).
    """
    t = host.timeline
    outermost = host.is_op & ~((host.parent >= 0) & host.is_op[host.parent])
    runs: list[tuple[int, int]] = []
    backward = host.is_backward_op
    works = np.array([group_of_op(name) is not None for name in t.names], bool)[t.name]
    other = outermost & ~backward & works
    foreign = t.start_ns[other & (t.lane == host.training_lane)]
    for lane in np.unique(t.lane[outermost & backward]):
        breaks = np.union1d(foreign, t.start_ns[other & (t.lane == lane)])
        events = np.flatnonzero(outermost & backward & (t.lane == lane))
        run = np.searchsorted(breaks, t.start_ns[events], side="right")
        first = np.flatnonzero(np.append(True, run[1:] != run[:-1]))
        last = np.append(first[1:], len(events)) - 1
        runs.extend(zip(t.start_ns[events[first]].tolist(), t.end_ns[events[last]].tolist(), strict=True))
    return runs


def _fill(segments: Segments, labels: Int64s, zeroing: np.ndarray, windows: tuple[Window, ...]) -> Int64s:
    """Names what no annotation names: forward before a backward of the same step, other elsewhere.

    Between the last backward or optimizer step and the next backward, what lies before the first batch or zero_grad
    (`loss.item()`, logging) is other. A step without backward and optimizer (inference) is forward throughout.
    """
    filled = labels.copy()
    edges = np.array([window.start_ns for window in windows], np.int64)
    step = np.searchsorted(edges, segments.start_ns, side="right")
    for number in np.unique(step):
        rows = np.flatnonzero(step == number)
        kinds = labels[rows]
        border = (kinds == BACKWARD) | ((kinds == OPTIMIZER) & ~zeroing[rows]) | (kinds == CHECKPOINT)
        if not border.any():
            filled[rows[kinds == NOBODY]] = FORWARD
            continue
        stretch: list[int] = []
        for row, kind, is_border in zip(rows.tolist(), kinds.tolist(), border.tolist(), strict=True):
            if not is_border:
                stretch.append(row)
                continue
            if stretch:
                _name_stretch(filled, labels, stretch, leads_to_backward=kind == BACKWARD)
            stretch = []
        _name_stretch(filled, labels, stretch, leads_to_backward=False)
    return filled


def _name_stretch(filled: Int64s, labels: Int64s, rows: list[int], *, leads_to_backward: bool) -> None:
    marked = [row for row in rows if labels[row] != NOBODY]
    forward_from = marked[0] if marked else -1
    for row in rows:
        if labels[row] == NOBODY:
            filled[row] = FORWARD if leads_to_backward and row > forward_from else OTHER
