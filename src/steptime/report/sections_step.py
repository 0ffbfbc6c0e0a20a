"""The step itself: its picture, the findings with their evidence, the ops and the idle time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.explain import PHASES, CorrectedCell, Explanation, OpRow
from steptime.report import numbers, palette
from steptime.report.blocks import (
    Absent,
    Block,
    Column,
    FindingBlock,
    Heading,
    Note,
    Row,
    Section,
    Table,
    TableBlock,
    Text,
    figure,
    table,
)
from steptime.report.charts_step import Bar, group_rows, kind, step_bars
from steptime.report.tuning import Tuning

_MOST_OPS = 25
_MOST_LINES = 12


def bars(explanation: Explanation | None, after: Explanation | None, tuning: Tuning | None) -> tuple[Bar, ...]:
    """The step before and, when it is known, after; a step that was never broken down has a time only."""
    found = []
    if explanation:
        label = "step" if not (after or (tuning and tuning.after_s)) else "before"
        found.append(_bar(label, explanation))
    elif tuning and tuning.before_s:
        found.append(Bar(label="before", ns=round(1e9 * tuning.before_s)))
    if after:
        found.append(_bar("after", after))
    elif tuning and tuning.after_s:
        found.append(Bar(label="after", ns=round(1e9 * tuning.after_s)))
    return tuple(found)


def _bar(label: str, explanation: Explanation) -> Bar:
    step = explanation.step
    return Bar(label=label, ns=step.median_ns, low_ns=step.low_ns, high_ns=step.high_ns, cells=explanation.corrected)


def step_section(explanation: Explanation | None, after: Explanation | None, tuning: Tuning | None) -> Section | None:
    """The picture of the step, and its numbers to the ns."""
    drawn = bars(explanation, after, tuning)
    if not drawn:
        return None
    blocks: list[Block] = []
    caption = (
        "One step, phases in the order they run. Solid: compute; hatched: exposed communication; cross-hatched: "
        "exposed copies; dotted: idle. Point at a part for its nanoseconds and interval."
    )
    blocks.append(figure(lambda width: step_bars(drawn, width), caption))
    if any(bar.cells for bar in drawn):
        caption = (
            "The same time by what it was spent on; the line over a bar is its interval, the parts of a bar are phases."
        )
        if sum(1 for bar in drawn if bar.cells) > 1:
            caption += " Upper bar before, lower bar after."
        blocks.append(figure(lambda width: group_rows(drawn, width), caption))
    if explanation is None:
        blocks.append(Absent("The step was not broken down: pass the JSON of steptime explain as well."))
    elif len(drawn) > 1 and not drawn[1].cells:
        blocks.append(
            Absent(
                "The step after tuning was timed, not broken down: explain it under the plan and pass that JSON second."
            )
        )
    if explanation:
        blocks.extend(_exact(explanation, "before" if after else ""))
        blocks.append(_inflation(explanation))
    if after:
        blocks.extend(_exact(after, "after"))
        if after.inflation is not None:
            blocks.append(
                Note(f"After: traced steps were {numbers.ratio(after.inflation)} as long, taken out in the same way.")
            )
    return Section(id="step", title="Where the step goes", blocks=tuple(blocks))


def _exact(explanation: Explanation, name: str) -> list[Block]:
    blocks: list[Block] = []
    if explanation.corrected:
        label = f"The cells {name} in ns, with their sums".replace("  ", " ")
        blocks.append(TableBlock(_cells_table(explanation.corrected, label), label))
    blocks.extend(Note(note) for note in explanation.notes)
    if explanation.dropped:
        blocks.append(Note("Left out of the trace: " + "; ".join(explanation.dropped) + "."))
    return blocks


def _inflation(explanation: Explanation) -> Note:
    """How much tracing inflated the step, and what was done about it."""
    if explanation.inflation is None:
        return Note(
            "Only a trace is known, so these are times of traced steps; how much tracing inflated them is unknown."
        )
    return Note(
        f"Tracing made the step {numbers.ratio(explanation.inflation)} as long "
        f"({numbers.duration(explanation.traced_step_ns)} traced, {numbers.duration(explanation.step.median_ns)} "
        f"untraced, median of {explanation.step.n}). What is drawn is the untraced step, the overhead of tracing taken "
        "out of every cell in proportion to its events; the intervals hold what that leaves unknown."
    )


def _cells_table(cells: Sequence[CorrectedCell], label: str) -> Table:
    """Group x phase in ns, every digit, so that a reader can add them up."""
    phases = [phase for phase in PHASES if any(cell.phase == phase for cell in cells)]
    sums: dict[str, dict[str, int]] = {}
    swatches: dict[str, str] = {}
    for cell in cells:
        row = sums.setdefault(kind(cell), {})
        row[cell.phase] = row.get(cell.phase, 0) + cell.ns
        swatches[kind(cell)] = palette.swatch(cell.resource, cell.group)
    rows = []
    for name, row in sorted(sums.items(), key=lambda item: -sum(item[1].values())):
        each = tuple(numbers.nanoseconds(row[phase]) if phase in row else "" for phase in phases)
        rows.append(Row(cells=(name, *each, numbers.nanoseconds(sum(row.values()))), swatch=swatches[name]))
    totals = tuple(numbers.nanoseconds(sum(row.get(phase, 0) for row in sums.values())) for phase in phases)
    whole = numbers.nanoseconds(sum(cell.ns for cell in cells))
    rows.append(Row(cells=("the step", *totals, whole), total=True))
    columns = [Column(head="ns per step"), *(Column(head=phase, number=True) for phase in phases)]
    return table(label, [*columns, Column(head="sum", number=True)], rows)


def findings_section(explanation: Explanation | None) -> Section | None:
    """Every finding with the cells, ops and lines it rests on."""
    if explanation is None:
        return None
    blocks: list[Block] = [_finding(finding, explanation) for finding in explanation.findings]
    if not blocks:
        blocks.append(Absent("No findings are recorded in this explanation."))
    return Section(id="findings", title="Findings", blocks=tuple(blocks))


def _finding(finding: Mapping[str, Any], explanation: Explanation) -> FindingBlock:
    """A finding's title, its sentence, its size, and what the explanation holds on the group and phase it names."""
    told = {
        "title",
        "name",
        "what",
        "why",
        "detail",
        "ns",
        "low_ns",
        "high_ns",
        "share",
        "cells",
        "ops",
        "source",
        "sources",
    }
    title = str(finding.get("title") or finding.get("what") or finding.get("name") or "finding")
    lines = [str(finding[key]) for key in ("what", "why", "detail") if finding.get(key) and str(finding[key]) != title]
    if finding.get("ns") is not None:
        size = numbers.duration_interval(finding["ns"], finding.get("low_ns"), finding.get("high_ns"))
        lines.append(f"{size} per step, {numbers.share(finding['ns'], explanation.step.median_ns)} of it.")
    cells = [cell for cell in explanation.corrected if _names(finding, cell.resource, cell.group, cell.phase)]
    ops = [
        op
        for op in explanation.ops
        if _names(finding, op.resource, op.group, op.phase) or op.name in _listed(finding, "ops")
    ]
    tables = []
    if cells:
        tables.append(_evidence_cells(cells, explanation.step.median_ns))
    if ops:
        tables.append(_ops_table(ops[:_MOST_LINES], explanation.step.median_ns))
    pairs = [(str(key).replace("_", " "), _said(value)) for key, value in finding.items() if key not in told]
    sources = _listed(finding, "sources") or ([str(finding["source"])] if finding.get("source") else [])
    if sources:
        pairs.append(("source lines", "; ".join(sources)))
    return FindingBlock(title=title, lines=tuple(lines), pairs=tuple(pairs), tables=tuple(tables))


def _listed(finding: Mapping[str, Any], key: str) -> list[str]:
    value = finding.get(key)
    if not isinstance(value, list | tuple):
        return []
    return [str(item.get("name", item)) if isinstance(item, Mapping) else str(item) for item in value]


def _names(finding: Mapping[str, Any], resource: str, group: str, phase: str) -> bool:
    """Whether the finding is about this cell: it names its group (and, when it names them, its resource and phase)."""
    spots = [spot for spot in finding.get("cells") or () if isinstance(spot, Mapping)] or [finding]
    return any(
        spot.get("group") == group
        and spot.get("resource", resource) in (resource, None)
        and spot.get("phase", phase) in (phase, None)
        for spot in spots
    )


def _said(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {_said(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(_said(item) for item in value)
    if isinstance(value, float):
        return numbers.plain(value)
    return str(value)


def _evidence_cells(cells: Sequence[CorrectedCell], whole: int) -> Table:
    rows = [
        Row(
            cells=(
                kind(cell),
                cell.phase,
                numbers.duration_interval(cell.ns, cell.low_ns, cell.high_ns),
                numbers.share(cell.ns, whole),
            ),
            swatch=palette.swatch(cell.resource, cell.group),
        )
        for cell in sorted(cells, key=lambda cell: -cell.ns)
    ]
    columns = [
        Column(head="cell"),
        Column(head="phase"),
        Column(head="per step", number=True),
        Column(head="share", number=True),
    ]
    return table("Cells behind the finding", columns, rows)


def ops_section(explanation: Explanation | None) -> Section | None:
    """The longest ops, and the idle time with the line that explains it."""
    if explanation is None:
        return None
    ops = sorted(explanation.ops, key=lambda op: -op.self_ns)
    blocks: list[Block] = []
    if ops:
        shown = ops[:_MOST_OPS]
        covered = numbers.share(sum(op.self_ns for op in shown), explanation.step.median_ns)
        blocks.append(Text(f"The {len(shown)} longest of {len(ops)} ops; together {covered} of the step."))
        blocks.append(TableBlock(_ops_table(shown, explanation.step.median_ns)))
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


def _ops_table(ops: Sequence[OpRow], whole: int) -> Table:
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
        Column(head="line", code=True, wide=True),
    ]
    return table("Idle time by cause", columns, rows)
