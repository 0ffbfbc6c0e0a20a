"""The longest ops, the idle time by cause, and the lines of the script in which the stack samples fall."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from steptime.explain import Explanation, OpRow
from steptime.report import numbers, palette
from steptime.report.blocks import Absent, Block, Column, Heading, Row, Section, Table, TableBlock, Text, table

_MOST_OPS = 25
_MOST_LINES = 12


def merge_ops(ops: Sequence[OpRow]) -> list[OpRow]:
    """Ops of the same name, shapes, dtype and phase as one row, longest first: repeated layers read as one thing.

    Times, calls, FLOPs and bytes are added (the ends of intervals too, so the interval holds the sum); `module` names
    the first module and how many more there are.
    """
    groups: dict[tuple[object, ...], list[OpRow]] = {}
    for op in ops:
        groups.setdefault((op.name, op.phase, op.resource, op.group, op.shapes, op.dtype), []).append(op)
    return sorted((_merged(rows) for rows in groups.values()), key=lambda op: -op.self_ns)


def _merged(rows: Sequence[OpRow]) -> OpRow:
    if len(rows) == 1:
        return rows[0]
    first = max(rows, key=lambda op: op.self_ns)
    flops = [op.flops for op in rows if op.flops is not None]
    moved = [op.bytes for op in rows if op.bytes is not None]
    modules = list(dict.fromkeys(op.module for op in rows if op.module))
    shown = first.module or (modules[0] if modules else "")
    return dataclasses.replace(
        first,
        calls_per_step=sum(op.calls_per_step for op in rows),
        self_ns=sum(op.self_ns for op in rows),
        low_ns=sum(op.low_ns for op in rows),
        high_ns=sum(op.high_ns for op in rows),
        traced_self_ns=sum(op.traced_self_ns for op in rows),
        # a sum over some of the rows would be a wrong rate for all of them
        flops=sum(flops) if len(flops) == len(rows) else None,
        bytes=sum(moved) if len(moved) == len(rows) else None,
        module=f"{shown} and {len(modules) - 1} more" if len(modules) > 1 else shown,
    )


def ops_section(explanation: Explanation | None) -> Section | None:
    """The longest ops, and the idle time with the line that explains it."""
    if explanation is None:
        return None
    ops = merge_ops(explanation.ops)
    blocks: list[Block] = []
    if ops:
        shown = ops[:_MOST_OPS]
        covered = numbers.share(sum(op.self_ns for op in shown), explanation.step.median_ns)
        blocks.append(Text(f"The {len(shown)} longest of {len(ops)} ops; together {covered} of the step."))
        blocks.append(TableBlock(ops_table(shown, explanation.step.median_ns)))
    else:
        blocks.append(Absent("The trace holds no ops."))
    if explanation.gaps:
        blocks.append(Heading("Idle time by cause"))
        blocks.append(TableBlock(_gaps_table(explanation)))
    if explanation.stacks:
        blocks.append(Heading("Lines of the script in which the stack samples fall"))
        rows = [Row(cells=(line, numbers.percent(part))) for line, part in explanation.stacks[:_MOST_LINES]]
        columns = [Column(head="line", code=True, wide=True), Column(head="share of samples", number=True)]
        blocks.append(TableBlock(table("Lines of the script", columns, rows)))
    return Section(id="ops", title="Top ops", blocks=tuple(blocks))


def ops_table(ops: Sequence[OpRow], whole: int) -> Table:
    """The ops in the order given; shares are of `whole` ns."""
    rows = [
        Row(
            cells=(
                op.name,
                op.phase,
                numbers.duration_interval(op.self_ns, op.low_ns, op.high_ns),
                numbers.share(op.self_ns, whole),
                numbers.count(op.calls_per_step),
                " ".join([*("×".join(map(str, shape)) or "scalar" for shape in op.shapes), op.dtype]),
                numbers.si(op.flops / (op.self_ns / 1e9), "FLOP/s") if op.flops and op.self_ns else numbers.MISSING,
            ),
            swatch=palette.swatch(op.resource, op.group),
            below=" · ".join(part for part in (op.module, op.source) if part),
        )
        for op in ops
    ]
    columns = [
        Column(head="op, module and line", code=True, wide=True),
        Column(head="phase"),
        Column(head="self time per step", number=True),
        Column(head="share", number=True),
        Column(head="calls", number=True),
        Column(head="input shapes, dtype", wide=True),
        Column(head="achieved", number=True),
    ]
    return table("Ops", columns, rows)


def _gaps_table(explanation: Explanation) -> Table:
    rows = [
        Row(
            cells=(
                gap.cause.replace("_", " "),
                gap.phase,
                numbers.duration_interval(gap.ns, gap.low_ns, gap.high_ns),
                numbers.share(gap.ns, explanation.step.median_ns),
                numbers.count(gap.calls_per_step),
                gap.source,
            ),
            swatch="idle",
        )
        for gap in sorted(explanation.gaps, key=lambda gap: -gap.ns)[:_MOST_LINES]
    ]
    columns = [
        Column(head="cause"),
        Column(head="phase"),
        Column(head="per step", number=True),
        Column(head="share", number=True),
        Column(head="gaps", number=True),
        Column(head="line, or the ops around it", code=True, wide=True),
    ]
    return table("Idle time by cause", columns, rows)
