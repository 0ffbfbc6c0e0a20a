"""The ops that take the time: rows by op, input shapes and phase, with FLOPs, bytes, module and source line."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steptime.explain.account import IDLE, Account
from steptime.explain.cells import PHASES, RESOURCES
from steptime.explain.correct import Corrected
from steptime.explain.explanation import OpRow
from steptime.explain.flops import bytes_of, dtype_of, flops_of
from steptime.explain.groups import group_of_op
from steptime.explain.host import Host
from steptime.timeline import Inputs

Int64s = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Work:
    """FLOPs and bytes of each host op of a rank; -1 where unknown or counted by another op of the same call."""

    host: Host

    @cached_property
    def _arithmetic(self) -> tuple[Int64s, Int64s]:
        t = self.host.timeline
        cache: dict[tuple[int, int], int | None] = {}
        counted = np.full(len(t), -1, np.int64)
        flops = np.full(len(t), -1, np.int64)
        names, inputs, is_op = t.name.tolist(), t.inputs.tolist(), self.host.is_op.tolist()
        for event, parent in enumerate(self.host.parent.tolist()):
            if parent >= 0 and counted[parent] >= 0:
                counted[event] = counted[parent]
            elif is_op[event]:
                key = (names[event], inputs[event])
                if key not in cache:
                    cache[key] = flops_of(t.names[key[0]], self.inputs(event))
                value = cache[key]
                if value is not None:
                    counted[event] = event
                    flops[event] = value
        return counted, flops

    @property
    def counted(self) -> Int64s:
        """For each event, the outermost op around it (or itself) that has a FLOP formula and fits it; -1: none."""
        return self._arithmetic[0]

    @property
    def flops(self) -> Int64s:
        """FLOPs of each op that does counted arithmetic; -1 elsewhere."""
        return self._arithmetic[1]

    @cached_property
    def bytes(self) -> Int64s:
        """Bytes of each op that does the work itself (no op below it has a group); -1 elsewhere."""
        t = self.host.timeline
        works = np.array([group_of_op(name) is not None for name in t.names], bool)[t.name] & self.host.is_op
        parent = self.host.parent
        delegates = np.zeros(len(t), bool)
        delegates[parent[works & (parent >= 0)]] = True
        cache: dict[tuple[int, int], int] = {}
        found = np.full(len(t), -1, np.int64)
        for event in np.flatnonzero(works & ~delegates).tolist():
            key = (int(t.name[event]), int(t.inputs[event]))
            if key not in cache:
                name = t.names[key[0]]
                value = bytes_of(name, group_of_op(name), self.inputs(event))
                cache[key] = -1 if value is None else value
            found[event] = cache[key]
        return found

    def inputs(self, event: int) -> Inputs | None:
        """What was recorded of the event's inputs."""
        index = int(self.host.timeline.inputs[event])
        return None if index < 0 else self.host.timeline.input_table[index]


def work_of(account: Account) -> NDArray[np.int64]:
    """The host op that stands for each event: itself; for a device event, the op that launched it (else itself)."""
    host = account.host
    found = np.arange(len(account.timeline))
    if account.has_device:
        launches = host.launch
        linked = launches >= 0
        ops = launches.copy()
        for _ in range(2):  # a runtime call's parent is the op; a call outside of ops stands for itself
            up = (ops >= 0) & ~host.is_op[np.maximum(ops, 0)] & (host.parent[np.maximum(ops, 0)] >= 0)
            ops = np.where(up, host.parent[np.maximum(ops, 0)], ops)
        linked &= host.is_op[np.maximum(ops, 0)]
        found = np.where(linked, ops, found)
    return found


def op_rows(
    account: Account, work: Work, cells: dict[tuple[str, str, str], int], corrected: Corrected
) -> tuple[OpRow, ...]:
    """All ops of the windows, most corrected time first. `cells` numbers (resource, group, phase) as in `corrected`."""
    t, host, steps = account.timeline, account.host, max(1, len(account.windows))
    modules = modules_of(host)
    stands_for = work_of(account)
    busy = np.flatnonzero(account.segments.owner >= 0)
    owner = account.segments.owner[busy]
    forward_of = _forward_above(host)
    keys: dict[tuple, int] = {}
    rows: list[_Row] = []
    memo: dict[tuple[int, int, int, int], int] = {}
    for piece, event in zip(busy.tolist(), owner.tolist(), strict=True):
        at = (event, int(account.resource[piece]), int(account.label[piece]), int(account.phase[piece]))
        row = memo.get(at)
        if row is None:
            op = int(stands_for[event])
            maker = forward_of[op]
            caller = t.text(int(host.caller[maker if maker >= 0 else op])) if host.caller[op] >= 0 else t.text(op)
            key = (t.name[op], caller, at[1], at[2], at[3], t.inputs[op], modules[op], t.source[op])
            row = memo[at] = keys.setdefault(key, len(rows))
            if row == len(rows):
                rows.append(_Row(event=op, caller=caller, resource=at[1], label=at[2], phase=at[3], module=modules[op]))
            rows[row].calls.add(op)
        rows[row].ns += int(account.segments.end_ns[piece] - account.segments.start_ns[piece])
        rows[row].events += int(account.charged[piece])
    return _finish(account, work, rows, cells, corrected, steps)


@dataclass(kw_only=True, slots=True)
class _Row:
    event: int
    caller: str
    resource: int
    label: int
    phase: int
    module: str
    ns: int = 0
    events: int = 0
    calls: set[int] = field(default_factory=set)


def _finish(
    account: Account,
    work: Work,
    rows: list[_Row],
    cells: dict[tuple[str, str, str], int],
    corrected: Corrected,
    steps: int,
) -> tuple[OpRow, ...]:
    """Shares each cell's corrected time among its rows by their time without overhead."""
    t = account.timeline
    left = np.array([max(0.0, row.ns / steps - corrected.per_event_ns * row.events / steps) for row in rows])
    of_cell = np.array(
        [cells[RESOURCES[row.resource], account.labels[row.label], PHASES[row.phase]] for row in rows], np.int64
    )
    sums = np.bincount(of_cell, weights=left, minlength=len(corrected.ns)) if len(rows) else np.zeros(0)
    idle_share = _idle_share(account, rows, of_cell, corrected, steps)
    finished = []
    for number, row in enumerate(rows):
        cell = of_cell[number]
        share = left[number] / sums[cell] * idle_share.get(int(cell), 1.0) if sums[cell] > 0 else 0.0
        calls = np.fromiter(row.calls, np.int64)
        flops = work.flops[calls]
        moved = work.bytes[calls]
        inputs = work.inputs(row.event)
        finished.append(
            OpRow(
                name=t.text(row.event),
                caller=row.caller,
                group=account.labels[row.label],
                phase=PHASES[row.phase],
                resource=RESOURCES[row.resource],
                shapes=_tensor_shapes(inputs),
                dtype=dtype_of(inputs) if inputs else "",
                calls_per_step=round(len(calls) / steps, 3),
                self_ns=round(share * int(corrected.ns[cell])),
                low_ns=int(share * int(corrected.low_ns[cell])),
                high_ns=int(np.ceil(share * int(corrected.high_ns[cell]))),
                traced_self_ns=round(row.ns / steps),
                flops=round(int(flops[flops >= 0].sum()) / steps) if (flops >= 0).any() else None,
                bytes=round(int(moved[moved >= 0].sum()) / steps) if (moved >= 0).any() else None,
                module=row.module,
                source=t.names[t.source[row.event]] if t.source[row.event] >= 0 else "",
            )
        )
    return tuple(sorted(finished, key=lambda row: -row.self_ns))


def _idle_share(
    account: Account, rows: list[_Row], of_cell: Int64s, corrected: Corrected, steps: int
) -> dict[int, float]:
    """An idle cell also holds time that no op owns: the share of it that its waiting ops own."""
    shares = {}
    for cell in {int(cell) for row, cell in zip(rows, of_cell, strict=True) if row.resource == IDLE}:
        waiting = [row for row, where in zip(rows, of_cell, strict=True) if where == cell]
        first = waiting[0]
        mask = (account.resource == first.resource) & (account.label == first.label) & (account.phase == first.phase)
        total = int(account.segments.duration_ns[mask].sum())
        shares[cell] = sum(row.ns for row in waiting) / total if total else 0.0
    return shares


def _tensor_shapes(inputs: Inputs | None) -> tuple[tuple[int, ...], ...]:
    """Shapes of the tensor inputs; those of a TensorList one by one, at most 16."""
    if inputs is None:
        return ()
    shapes: list[tuple[int, ...]] = []
    for shape in inputs.shapes:
        if shape and isinstance(shape[0], tuple):
            shapes.extend(shape)
        elif shape:
            shapes.append(shape)
    return tuple(shapes[:16])


def _forward_above(host: Host) -> list[int]:
    """For events that autograd called: the forward op whose gradient they compute; -1 elsewhere."""
    found = host.forward_of_backward.tolist()
    for event, parent in enumerate(host.parent.tolist()):
        if found[event] < 0 and parent >= 0:
            found[event] = found[parent]
    return found


def modules_of(host: Host) -> list[str]:
    """The module path of each event; "" where the trace does not tell.

    It is recorded with the event, else its nearest steptime.module annotation's, else that of the forward op whose
    gradient the event computes.
    """
    t = host.timeline
    prefix = "steptime.module:"
    recorded: list[str | None] = []
    annotation = host.is_annotation.tolist()
    for event, (module, name) in enumerate(zip(t.module.tolist(), t.name.tolist(), strict=True)):
        text = t.names[name]
        if module >= 0:
            recorded.append(t.names[module])
        elif annotation[event] and text.startswith(prefix):
            recorded.append(text.removeprefix(prefix).strip())
        else:
            recorded.append(None)
    found = host.inherit(recorded)
    forward = _forward_above(host)
    return [module or (found[maker] if maker >= 0 else "") or "" for module, maker in zip(found, forward, strict=True)]
