"""The host side of one rank: its op tree, its training thread, the windows of its steps."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steptime.explain.groups import is_communication_op
from steptime.explain.sweep import Int64s, parents
from steptime.timeline import EventKind, Timeline

Bools = NDArray[np.bool_]

STEP_NAMES = ("steptime.step", "ProfilerStep")
"""Annotations that mark a step, the better one first."""

_BACKWARD = re.compile(
    r"^autograd::engine::evaluate_function|^torch::autograd::|^torch[.]distributed[.]ddp[.]reducer::|Backward\d*$|^AccumulateGrad$|^CompiledFunctionBackward"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """One step, half-open; `name` says what marked it."""

    start_ns: int
    end_ns: int
    name: str


@dataclass(frozen=True, eq=False)
class Host:
    """One rank's Timeline with what follows from the nesting of its host events."""

    timeline: Timeline

    @cached_property
    def is_op(self) -> Bools:
        """The ops of all threads; communication backends' own annotations are no ops."""
        return self.timeline.kind == EventKind.CPU_OP

    @cached_property
    def is_annotation(self) -> Bools:
        """The user's, torch's and steptime's annotations."""
        return self.timeline.kind == EventKind.ANNOTATION

    @cached_property
    def parent(self) -> Int64s:
        """The innermost enclosing op or annotation of each op, annotation or runtime call; -1 for none."""
        t = self.timeline
        mask = self.is_op | self.is_annotation | (t.kind == EventKind.RUNTIME)
        index = np.flatnonzero(mask)
        inner = parents(t.start_ns[index], t.end_ns[index], t.lane[index])
        found = np.full(len(t), -1, np.int64)
        found[index] = np.where(inner < 0, -1, index[inner])
        return found

    def inherit(self, own: list[str | None]) -> list[str | None]:
        """Each event's own value, else that of its nearest ancestor which has one."""
        result = list(own)
        for event, parent in enumerate(self.parent.tolist()):
            if result[event] is None and parent >= 0:
                result[event] = result[parent]
        return result

    @cached_property
    def caller(self) -> Int64s:
        """The outermost op around each op (itself when none), below autograd's wrappers; -1 for events in no op."""
        is_op = self.is_op.tolist()
        is_backward = self.is_backward_op.tolist()
        found = np.full(len(self.timeline), -1, np.int64)
        for event, parent in enumerate(self.parent.tolist()):
            above = found[parent] if parent >= 0 else -1
            if above >= 0 and not is_backward[above]:
                found[event] = above
            elif is_op[event]:
                found[event] = event
        return found

    @cached_property
    def is_backward_op(self) -> Bools:
        """Autograd's own events: evaluate_function, the nodes (MmBackward0), AccumulateGrad."""
        t = self.timeline
        names = np.array([_BACKWARD.search(name) is not None for name in t.names], bool)
        return self.is_op & names[t.name]

    @cached_property
    def is_communication(self) -> Bools:
        """Host events that move data between ranks or wait for it, on any thread."""
        t = self.timeline
        names = np.array([is_communication_op(name) for name in t.names], bool)
        return (self.is_op | self.is_annotation) & names[t.name]

    @cached_property
    def training_lane(self) -> int:
        """The thread that trains: it has the step or optimizer annotations, else the most op time; -1: none."""
        t = self.timeline
        marks = np.array([name.startswith(("steptime.step#", "Optimizer.step", "ProfilerStep#")) for name in t.names])
        candidates = t.lane[self.is_annotation & marks[t.name]] if len(marks) else t.lane[:0]
        if len(candidates):
            return Counter(candidates.tolist()).most_common(1)[0][0]
        outermost = self.is_op & (self.parent < 0)
        if not outermost.any():
            return int(t.lane[self.is_annotation][0]) if self.is_annotation.any() else -1
        times = np.bincount(t.lane[outermost], weights=t.duration_ns[outermost])
        return int(times.argmax())

    def annotations(self, prefix: str, lane: int | None = None) -> Int64s:
        """Indices of the annotations whose name starts so, on one lane or any."""
        t = self.timeline
        names = np.array([name.startswith(prefix) for name in t.names], bool)
        mask = self.is_annotation & names[t.name]
        return np.flatnonzero(mask if lane is None else mask & (t.lane == lane))

    def windows(self) -> tuple[Window, ...]:
        """The steps: the steptime.step annotations, else ProfilerStep's, else the whole trace as one window.

        With a device a step also holds the kernels that it launched and that ran after its annotation, up to the next
        step. Without annotations the window is the device's activity, or the host's where there is no device.
        """
        t = self.timeline
        for name in STEP_NAMES:
            found = self.annotations(name + "#", self.training_lane)
            found = found[t.duration_ns[found] > 0]
            if len(found):
                return self._annotated(found, name)
        busy = t.on_device if t.on_device.any() else np.ones(len(t), bool)
        if not len(t):
            return ()
        whole = Window(start_ns=int(t.start_ns[busy].min()), end_ns=int(t.end_ns[busy].max()), name="trace")
        return (whole,) if whole.end_ns > whole.start_ns else ()

    def _annotated(self, found: Int64s, name: str) -> tuple[Window, ...]:
        t = self.timeline
        starts = t.start_ns[found]
        ends = t.end_ns[found].copy()
        if t.on_device.any():
            launches = self.launch
            device = np.flatnonzero(t.on_device & (launches >= 0))
            step = np.searchsorted(starts, t.start_ns[launches[device]], side="right") - 1
            inside = (step >= 0) & (t.start_ns[launches[device]] < t.end_ns[found][np.maximum(step, 0)])
            np.maximum.at(ends, step[inside], t.end_ns[device[inside]])
        ends = np.minimum(ends, np.append(starts[1:], ends[-1]))
        return tuple(
            Window(start_ns=start, end_ns=end, name=name)
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
            if end > start
        )

    @cached_property
    def launch(self) -> Int64s:
        """The host event that launched each device event: the runtime call of its correlation, else the op of its id.

        -1 for host events, and where neither is in the trace (launched before it began, or links not recorded).
        """
        t = self.timeline
        found = np.full(len(t), -1, np.int64)
        device = np.flatnonzero(t.on_device)
        for mask, column in ((t.kind == EventKind.RUNTIME, t.correlation), (self.is_op, t.external)):
            sources = np.flatnonzero(mask & (column > 0))
            order = sources[np.argsort(column[sources], kind="stable")]
            if not len(order):
                continue
            missing = device[(found[device] < 0) & (column[device] > 0)]
            slot = np.minimum(np.searchsorted(column[order], column[missing]), len(order) - 1)
            hit = column[order[slot]] == column[missing]
            found[missing[hit]] = order[slot[hit]]
        return found

    @cached_property
    def forward_of_backward(self) -> Int64s:
        """The forward op that made the node which an autograd event runs; -1 elsewhere.

        A node takes the sequence number that its forward op saw when it started; ops that make no node leave the number
        to the next, so that it is the last one to start with it (torch's own fwdbwd links follow the same rule).
        """
        t = self.timeline
        found = np.full(len(t), -1, np.int64)
        backward = self.is_backward_op
        forward = np.flatnonzero(self.is_op & ~backward & (t.sequence >= 0) & (~self.below_backward))
        latest = dict(zip(t.sequence[forward].tolist(), forward.tolist(), strict=True))  # later entries win
        nodes = np.flatnonzero(backward & (t.sequence >= 0))
        for event in nodes.tolist():
            maker = latest.get(int(t.sequence[event]), -1)
            found[event] = maker if maker < event else -1
        return found

    @cached_property
    def below_backward(self) -> Bools:
        """Events that autograd called, on whatever thread; its own events are not among them."""
        backward = self.is_backward_op.tolist()
        below = [False] * len(backward)
        for event, parent in enumerate(self.parent.tolist()):
            below[event] = parent >= 0 and (backward[parent] or below[parent])
        return np.array(below, bool)
