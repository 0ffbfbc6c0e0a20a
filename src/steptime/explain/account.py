"""The account of one rank: every piece of its windows with its owner, resource, group or cause, and phase.

Two cases, one partition: with a device its kernels and copies own the time; without one the training thread's ops do.
The priority order is compute, exposed communication, exposed copy, idle (docs/definitions.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steptime.explain.cells import RESOURCES
from steptime.explain.gaps import Causes, device_causes, host_causes
from steptime.explain.groups import collective_of, copy_of, group_of_kernel, group_of_op, is_waiting_op
from steptime.explain.host import Host, Window
from steptime.explain.phases import BACKWARD, DATA, OPTIMIZER, OTHER, phase_segments
from steptime.explain.sweep import NOBODY, Int64s, Segments, overlay, own
from steptime.timeline import EventKind, Timeline

COMPUTE, COMMUNICATION, COPY, IDLE = range(len(RESOURCES))


@dataclass(frozen=True, kw_only=True, eq=False)
class Account:
    """Pieces that tile the windows, in order. `step`: the window's number; `owner`: an event, or NOBODY when idle;
    `label`: index into `labels` (group, collective, copy direction or cause); `phase`: index into PHASES.

    `charged`: number of host events whose recording took its time inside the piece: the profiler works right before
    an event's start and after its end, so that its cost lies in the *enclosing* piece, not in the event itself.
    """

    host: Host
    windows: tuple[Window, ...]
    segments: Segments
    step: Int64s
    resource: NDArray[np.int8]
    label: Int64s
    phase: Int64s
    charged: Int64s
    labels: tuple[str, ...]
    has_device: bool

    @property
    def timeline(self) -> Timeline:
        """The rank's events."""
        return self.host.timeline


def account(timeline: Timeline, window: tuple[int, int] | None = None) -> Account:
    """The account of one rank's Timeline, over its steps or over an explicit window (ns, half-open)."""
    host = Host(timeline)
    windows = host.windows() if window is None else (Window(start_ns=window[0], end_ns=window[1], name="given"),)
    phases = phase_segments(host, windows)
    if not windows:
        return _empty(host)
    owners = _device_owners if timeline.on_device.any() else _host_owners
    return _assemble(host, windows, phases, *owners(host, windows, phases))


def _empty(host: Host) -> Account:
    nothing = np.empty(0, np.int64)
    return Account(
        host=host,
        windows=(),
        segments=Segments(start_ns=nothing, end_ns=nothing, owner=nothing),
        step=nothing,
        resource=nothing.astype(np.int8),
        label=nothing,
        phase=nothing,
        charged=nothing,
        labels=(),
        has_device=bool(host.timeline.on_device.any()),
    )


def _assemble(
    host: Host,
    windows: tuple[Window, ...],
    phases: Segments,
    segments: Segments,
    resource_of: NDArray[np.int8],
    label_of: NDArray[np.object_],
    phase_of: Int64s | None,
) -> Account:
    """`resource_of`, `label_of` and `phase_of` are by event; the last None: the phase is that of the moment."""
    cut, moment = overlay(segments, phases)
    step, inside = _steps(cut, windows)
    cut = Segments(start_ns=cut.start_ns[inside], end_ns=cut.end_ns[inside], owner=cut.owner[inside])
    moment, step = np.where(moment[inside] < 0, OTHER, moment[inside]), step[inside]
    busy = cut.owner != NOBODY
    resource = np.where(busy, resource_of[cut.owner], IDLE).astype(np.int8)
    phase = moment if phase_of is None else np.where(busy, phase_of[cut.owner], moment)
    text = np.where(busy, label_of[cut.owner], "")
    idle = np.flatnonzero(~busy)
    has_device = bool(host.timeline.on_device.any())
    pieces = Segments(start_ns=cut.start_ns[idle], end_ns=cut.end_ns[idle], owner=cut.owner[idle])
    if phase_of is None:
        found = host_causes(host, pieces, phase[idle] == DATA)
    else:
        found = device_causes(host, pieces, phase_of)
    cut, (resource, phase, text, step), idle = _split(cut, idle, found, (resource, phase, text, step))
    phase[idle] = np.where(found.phase >= 0, found.phase, phase[idle])
    text[idle] = found.cause
    labels, label = np.unique(text.astype(str), return_inverse=True)
    return Account(
        host=host,
        windows=windows,
        segments=cut,
        step=step,
        resource=resource,
        label=label.astype(np.int64),
        phase=phase,
        charged=_charges(host, cut, resource, has_device),
        labels=tuple(labels.tolist()),
        has_device=has_device,
    )


def _split(
    cut: Segments, rows: Int64s, found: Causes, columns: tuple[np.ndarray, ...]
) -> tuple[Segments, tuple[np.ndarray, ...], Int64s]:
    """`cut` with the pieces `rows` replaced by the finer ones of `found`; the columns to match; the new rows."""
    keep = np.ones(len(cut.start_ns), bool)
    keep[rows] = False
    fine = found.pieces
    starts = np.concatenate([cut.start_ns[keep], fine.start_ns])
    order = np.argsort(starts, kind="stable")
    is_new = np.concatenate([np.zeros(int(keep.sum()), bool), np.ones(len(fine.start_ns), bool)])[order]
    segments = Segments(
        start_ns=starts[order],
        end_ns=np.concatenate([cut.end_ns[keep], fine.end_ns])[order],
        owner=np.concatenate([cut.owner[keep], fine.owner])[order],
    )
    moved = tuple(np.concatenate([column[keep], column[rows][found.source]])[order] for column in columns)
    return segments, moved, np.flatnonzero(is_new)


def _steps(segments: Segments, windows: tuple[Window, ...]) -> tuple[Int64s, NDArray[np.bool_]]:
    starts = np.array([window.start_ns for window in windows], np.int64)
    ends = np.array([window.end_ns for window in windows], np.int64)
    step = np.searchsorted(starts, segments.start_ns, side="right") - 1
    inside = (step >= 0) & (segments.start_ns < ends[np.maximum(step, 0)]) if len(windows) else np.zeros(0, bool)
    return step, inside


def _hull_cut(segments: Segments, windows: tuple[Window, ...]) -> Segments:
    """Cut at the windows' borders, so that no piece lies half inside a step."""
    borders = np.array([edge for window in windows for edge in (window.start_ns, window.end_ns)], np.int64)
    inside = borders[(borders > segments.start_ns[0]) & (borders < segments.end_ns[-1])]
    starts = np.union1d(segments.start_ns, inside)
    return Segments(start_ns=starts, end_ns=np.append(starts[1:], segments.end_ns[-1]), owner=segments.owner_at(starts))


def _hull(windows: tuple[Window, ...]) -> tuple[int, int]:
    return windows[0].start_ns, max(window.end_ns for window in windows)


def _host_owners(
    host: Host, windows: tuple[Window, ...], phases: Segments
) -> tuple[Segments, NDArray[np.int8], NDArray[np.object_], Int64s | None]:
    """The CPU case: the training thread's innermost op; below it communication on any thread of the process."""
    t = host.timeline
    communicates = host.is_communication
    computes = host.is_op & (t.lane == host.training_lane) & ~communicates
    priority = np.where(computes, 1, 0)
    relevant = np.flatnonzero(computes | communicates)
    segments = own(t.start_ns[relevant], t.end_ns[relevant], priority[relevant], _hull(windows))
    owner = np.append(relevant, NOBODY)[segments.owner]
    segments = _hull_cut(Segments(start_ns=segments.start_ns, end_ns=segments.end_ns, owner=owner), windows)
    groups = op_groups(host, phases)
    waits = np.array([is_waiting_op(name) for name in t.names], bool)[t.name]
    resource = np.full(len(t), COMPUTE, np.int8)
    resource[communicates] = COMMUNICATION
    resource[waits] = IDLE
    label = np.array(groups, object)
    collectives = np.array([collective_of(name) for name in t.names], object)
    label[communicates] = collectives[t.name[communicates]]
    label[waits] = "sync"
    return segments, resource, label, None


def _device_owners(
    host: Host, windows: tuple[Window, ...], phases: Segments
) -> tuple[Segments, NDArray[np.int8], NDArray[np.object_], Int64s | None]:
    """The device case: kernels over communication over copies; unions over all streams of the rank's device."""
    t = host.timeline
    resource = np.full(len(t), IDLE, np.int8)
    resource[t.kind == EventKind.KERNEL] = COMPUTE
    resource[t.kind == EventKind.COMMUNICATION] = COMMUNICATION
    resource[(t.kind == EventKind.MEMCPY) | (t.kind == EventKind.MEMSET)] = COPY
    device = np.flatnonzero(t.on_device)
    segments = own(t.start_ns[device], t.end_ns[device], IDLE - resource[device].astype(np.int64), _hull(windows))
    owner = np.append(device, NOBODY)[segments.owner]
    segments = _hull_cut(Segments(start_ns=segments.start_ns, end_ns=segments.end_ns, owner=owner), windows)
    launches = host.launch
    linked = launches >= 0
    phase = np.full(len(t), OTHER, np.int64)
    phase[linked] = phases.owner_at(t.start_ns[launches[linked]])
    backward = np.append(host.below_backward | host.is_backward_op, False)
    phase[linked & backward[launches]] = BACKWARD
    groups = op_groups(host, phases)
    label = np.full(len(t), "", object)
    for event in device.tolist():
        name = t.text(event)
        if resource[event] == COMMUNICATION:
            label[event] = _collective(host, event, int(launches[event]))
        elif resource[event] == COPY:
            label[event] = copy_of(name)
        else:
            group = groups[launches[event]] if linked[event] else "other"
            group = group_of_kernel(name) if group == "other" else group
            label[event] = "optimizer" if phase[event] == OPTIMIZER else group
    return segments, resource, label, phase


def _collective(host: Host, event: int, launch: int) -> str:
    """The collective of a kernel: by its name, else by the ops around its launch (RCCL's kernels are all "Generic")."""
    plain = collective_of(host.timeline.text(event))
    while plain == "other" and launch >= 0:
        plain = collective_of(host.timeline.text(launch))
        launch = int(host.parent[launch])
    return plain


def op_groups(host: Host, phases: Segments) -> list[str]:
    """The group of each host event: its own, else its nearest ancestor's, else "other".

    Inside scaled_dot_product_attention everything is attention but the random numbers; so is what autograd calls for a
    node that was made there (linked by the sequence number). What runs in the optimizer phase is optimizer.
    """
    t = host.timeline
    by_name = [group_of_op(name) for name in t.names]
    known = (host.is_op | host.is_annotation).tolist()
    own_group = [by_name[name] if is_known else None for name, is_known in zip(t.name.tolist(), known, strict=True)]
    groups = host.inherit(own_group)
    attention = [group == "attention" for group in own_group]
    forward_of = host.forward_of_backward.tolist()
    for event, parent in enumerate(host.parent.tolist()):
        forward = forward_of[event]
        attention[event] |= (parent >= 0 and attention[parent]) or (forward >= 0 and attention[forward])
    optimizer = (phases.owner_at(t.start_ns) == OPTIMIZER).tolist()
    return [
        "optimizer" if in_optimizer else "attention" if in_attention and group != "random" else group or "other"
        for group, in_attention, in_optimizer in zip(groups, attention, optimizer, strict=True)
    ]


def _charges(host: Host, cut: Segments, resource: NDArray[np.int8], has_device: bool) -> Int64s:
    """How many recorded host events of the training thread each piece paid for (see Account.charged)."""
    t = host.timeline
    recorded = (host.is_op | host.is_annotation) & (t.lane == host.training_lane)
    starts = t.start_ns[recorded]
    piece = np.searchsorted(cut.start_ns, starts, side="left") - 1
    piece = np.maximum(piece, 0)
    inside = (starts >= cut.start_ns[0]) & (starts <= cut.end_ns[piece]) if len(cut.start_ns) else starts < 0
    if has_device:  # on a busy device the host's delay is hidden
        inside &= resource[piece] == IDLE
    return np.bincount(piece[inside], minlength=len(cut.start_ns)).astype(np.int64)
