"""Idle time by cause: what the training (or launching) thread did while nothing computed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from steptime.explain.host import Host
from steptime.explain.sweep import NOBODY, Int64s, Segments, own
from steptime.timeline import EventKind

_GARBAGE = re.compile(r"gc\.collect|^steptime\.gc|<built-in function collect>")
_SYNC_CALL = re.compile(r"Synchronize|^(cuda|hip)Memcpy$|^(cuda|hip)EventQuery")
_ALLOCATION = re.compile(r"Malloc|Free")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Causes:
    """Idle pieces cut where their cause changes.

    `source`: each one's row in the pieces that were asked about; `phase`: -1 for the phase of the moment.
    """

    cause: NDArray[np.object_]
    source: Int64s
    pieces: Segments
    phase: Int64s


@cache
def _cause_of_call(name: str) -> str:
    """The cause that a runtime call is: the host waits, allocates, or launches."""
    if _SYNC_CALL.search(name):
        return "sync"
    return "allocation" if _ALLOCATION.search(name) else "launch"


def host_causes(host: Host, pieces: Segments, in_data: NDArray[np.bool_]) -> Causes:
    """The causes of the CPU case; `in_data`: the piece lies in the data phase.

    Order: the profiler's own work, garbage collection, the data loader, Python between ops; "other" before the
    thread's first and after its last event.
    """
    t = host.timeline
    lane = t.lane == host.training_lane
    garbage = np.array([_GARBAGE.search(name) is not None for name in t.names], bool)[t.name]
    special = {
        "garbage_collection": garbage & ((t.kind == EventKind.PYTHON) | host.is_annotation) & lane,
        "profiler": t.kind == EventKind.OVERHEAD,
    }
    mine = lane & (host.is_op | host.is_annotation)
    edges = [t.start_ns[mine].min(initial=2**62), t.end_ns[mine].max(initial=-(2**62))]
    borders = [np.array(edges, np.int64)]
    borders += [times[mask] for mask in special.values() for times in (t.start_ns, t.end_ns)]
    fine, source = _cut_at(pieces, np.unique(np.concatenate(borders)))
    causes = np.where(in_data[source], "data", "python").astype(object)
    causes[(fine.start_ns < edges[0]) | (fine.start_ns >= edges[1])] = "other"
    for cause, mask in special.items():
        if mask.any() and len(fine.start_ns):
            window = (int(fine.start_ns[0]), int(fine.end_ns[-1]))
            owners = own(t.start_ns[mask], t.end_ns[mask], np.zeros(int(mask.sum()), np.int64), window)
            causes[owners.owner_at(fine.start_ns) != NOBODY] = cause
    return Causes(cause=causes, source=source, pieces=fine, phase=np.full(len(causes), -1, np.int64))


def device_causes(host: Host, pieces: Segments, phase_of: Int64s) -> Causes:
    """The causes of a device's gaps; a gap belongs to the phase (`phase_of`, by event) of the kernel that ends it.

    Until the launch call of the gap's last event began, the cause is what the launching thread did; during the call
    and until the event started it is "launch". A thread that stands still says what the training thread did.
    """
    t = host.timeline
    device = np.flatnonzero(t.on_device)  # ordered by start
    starts = t.start_ns[device]
    launches = host.launch
    if not len(pieces.start_ns):
        nothing = np.empty(0, np.int64)
        return Causes(cause=np.empty(0, object), source=nothing, pieces=pieces, phase=nothing)
    lanes = sorted({host.training_lane, *t.lane[launches[launches >= 0]].tolist()} - {-1})
    window = (int(pieces.start_ns[0]), int(pieces.end_ns[-1]))
    activity = {lane: _activity(host, lane, window) for lane in lanes}
    borders = [segments.start_ns for segments, _ in activity.values()]
    known = launches[launches >= 0]
    borders += [t.start_ns[known], t.end_ns[known]]
    fine, source = _cut_at(pieces, np.unique(np.concatenate(borders)))
    following = np.searchsorted(starts, fine.start_ns, side="left")
    ends_gap = np.append(device, -1)[np.minimum(following, len(device))]
    launch = np.where(ends_gap >= 0, launches[ends_gap], -1)
    main = _labels_at(activity.get(host.training_lane), fine.start_ns)
    causes = main.copy()
    for lane in lanes:
        rows = np.flatnonzero((launch >= 0) & (t.lane[launch] == lane))
        labels = _labels_at(activity[lane], fine.start_ns[rows])
        causes[rows] = np.where(labels == "", main[rows], labels)
    begun = (launch >= 0) & (fine.start_ns >= t.start_ns[launch])
    causes[begun] = "launch"
    causes[causes == ""] = "python" if lanes else "other"
    return Causes(cause=causes, source=source, pieces=fine, phase=np.where(ends_gap >= 0, phase_of[ends_gap], -1))


def _cut_at(pieces: Segments, borders: Int64s) -> tuple[Segments, Int64s]:
    """The pieces (which need not touch each other) cut at the borders inside them, and each one's row in `pieces`."""
    if not len(pieces.start_ns):
        return pieces, np.empty(0, np.int64)
    row = np.searchsorted(pieces.start_ns, borders, side="right") - 1
    inside = (row >= 0) & (borders > pieces.start_ns[row]) & (borders < pieces.end_ns[row])
    starts = np.concatenate([pieces.start_ns, borders[inside]])
    source = np.concatenate([np.arange(len(pieces.start_ns)), row[inside]])
    order = np.argsort(starts, kind="stable")
    starts, source = starts[order], source[order]
    last = np.append(source[1:] != source[:-1], True)
    ends = np.where(last, pieces.end_ns[source], np.append(starts[1:], 0))
    return Segments(start_ns=starts, end_ns=ends, owner=np.full(len(starts), NOBODY, np.int64)), source


def _activity(host: Host, lane: int, window: tuple[int, int]) -> tuple[Segments, list[str]]:
    """What one thread does at each moment: the innermost of its calls, ops and annotations, and the cause of each."""
    t = host.timeline
    mask = (t.lane == lane) & (host.is_op | host.is_annotation | (t.kind == EventKind.RUNTIME))
    index = np.flatnonzero(mask)
    segments = own(t.start_ns[index], t.end_ns[index], np.zeros(len(index), np.int64), window)
    causes = []
    for event in index.tolist():
        name = t.text(event)
        if t.kind[event] == EventKind.RUNTIME:
            causes.append(_cause_of_call(name))
        elif host.is_op[event]:
            causes.append("dispatch")
        elif name.startswith(("enumerate(DataLoader)#", "steptime.data")):
            causes.append("data")
        else:
            causes.append("python")
    return segments, causes


def _labels_at(activity: tuple[Segments, list[str]] | None, times_ns: Int64s) -> NDArray[np.object_]:
    """The cause at each time; "" where the thread did nothing."""
    if activity is None:
        return np.full(len(times_ns), "", object)
    segments, causes = activity
    return np.array([*causes, ""], object)[segments.owner_at(times_ns)]


def gap_sources(host: Host, pieces: Segments, before: Int64s, after: Int64s) -> list[str]:
    """A name for each idle piece: its innermost Python function, else the ops on both sides of it.

    `before` and `after`: the events that own the neighbouring pieces, -1 for none.
    """
    t = host.timeline
    python = np.flatnonzero((t.kind == EventKind.PYTHON) & (t.lane == host.training_lane))
    names = []
    at = np.full(len(pieces.start_ns), NOBODY, np.int64)
    if len(python) and len(pieces.start_ns):
        window = (int(pieces.start_ns[0]), int(pieces.end_ns[-1]))
        owners = own(t.start_ns[python], t.end_ns[python], np.zeros(len(python), np.int64), window)
        at = np.append(python, NOBODY)[owners.owner_at(pieces.start_ns + (pieces.end_ns - pieces.start_ns) // 2)]
    for inner, left, right in zip(at.tolist(), before.tolist(), after.tolist(), strict=True):
        if inner >= 0:
            names.append(t.text(inner))
        else:
            names.append(" -> ".join(part for part in (_outer(host, left), _outer(host, right)) if part))
    return names


def _outer(host: Host, event: int) -> str:
    if event < 0:
        return "..."
    caller = int(host.caller[event])
    return host.timeline.text(caller if caller >= 0 else event).removeprefix("aten::")[:60]
