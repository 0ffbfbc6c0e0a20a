"""The step itself: its picture, and its cells to the nanosecond."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.explain import PHASES, CorrectedCell, Explanation
from steptime.report import numbers, palette
from steptime.report.blocks import (
    Absent,
    Block,
    Column,
    Note,
    Row,
    Section,
    Table,
    TableBlock,
    figure,
    table,
)
from steptime.report.charts_step import Bar, group_rows, kind, step_bars
from steptime.report.tuning import Tuning


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
    if any(bar.cells for bar in drawn):
        blocks.append(figure(lambda width: step_bars(drawn, width), caption))
    elif len(drawn) > 1:
        blocks.append(figure(lambda width: step_bars(drawn, width), "Step times on one scale."))
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
        if after.inflation is not None and after.inflation > 1:
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
    if explanation.inflation <= 1:
        return Note(
            f"Traced steps were not slower than untraced ones ({numbers.duration(explanation.traced_step_ns)} against "
            f"{numbers.duration(explanation.step.median_ns)}, median of {explanation.step.n}): the noise of this "
            "machine exceeds the overhead of tracing, so none could be taken out. The parts are those of the traced "
            "steps, scaled."
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
