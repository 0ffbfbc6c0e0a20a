"""The terminal's view of an Explanation: the sentence, the step as a bar, a few short tables. 80 columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from steptime.explain.cells import PHASES
from steptime.explain.explanation import Explanation, OpRow
from steptime.explain.verdict import duration, words_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

COLOURS = {
    "matmul": "dodger_blue2",
    "attention": "medium_purple2",
    "convolution": "steel_blue1",
    "recurrent": "slate_blue1",
    "normalisation": "dark_cyan",
    "elementwise": "cyan3",
    "reduction": "turquoise4",
    "random": "orange3",
    "embedding": "sea_green3",
    "optimizer": "yellow3",
    "copy": "grey62",
    "other": "grey46",
}
IDLE_COLOUR, COMMUNICATION_COLOUR, COPY_COLOUR = "red3", "magenta3", "hot_pink3"
PHASE_HEADS = {
    "data": "data",
    "forward": "fwd",
    "backward": "bwd",
    "optimizer": "opt",
    "checkpoint": "ckpt",
    "other": "rest",
}
WIDTH = 80
OPS_SHOWN = 8
SMALL = 0.01
"""Shares below this are added up in one line."""


def render(explanation: Explanation, console: Console) -> None:
    """Prints the explanation, sentence first."""
    for part in _parts(explanation):
        console.print(part, highlight=False, soft_wrap=False)


def _parts(explanation: Explanation) -> Iterable[RenderableType]:
    from rich.text import Text

    yield Text(explanation.verdict, style="bold")
    step = explanation.step
    if explanation.corrected:
        yield ""
        yield _bar(explanation)
        yield _phase_line(explanation)
        yield ""
        yield _cells(explanation)
        yield ""
        yield _operations(explanation.ops)
        gaps = [gap for gap in explanation.gaps if gap.ns >= SMALL * step.median_ns]
        if gaps:
            yield ""
            yield _gap_table(explanation, gaps[:5])
    if len(explanation.ranks) > 1:
        yield ""
        yield _rank_table(explanation)
    if explanation.utilisation:
        yield ""
        yield from (Text(line) for line in _utilisation(explanation))
    if explanation.stacks and explanation.stacks[0][1] > 0:
        yield ""
        yield Text("Python stood at  " + ",  ".join(f"{line} {share:.0%}" for line, share in explanation.stacks[:3]))
    yield ""
    for note in _notes(explanation):
        yield Text(note, style="dim")


def _colour(resource: str, group: str) -> str:
    if resource == "compute":
        return COLOURS.get(group, "grey46")
    return {"idle": IDLE_COLOUR, "exposed_communication": COMMUNICATION_COLOUR}.get(resource, COPY_COLOUR)


def _sums(explanation: Explanation) -> list[tuple[str, str, int]]:
    """(resource, group, ns) over the phases, most time first."""
    sums: dict[tuple[str, str], int] = {}
    for cell in explanation.corrected:
        sums[cell.resource, cell.group] = sums.get((cell.resource, cell.group), 0) + cell.ns
    return sorted(((*key, ns) for key, ns in sums.items()), key=lambda item: -item[2])


def _bar(explanation: Explanation) -> RenderableType:
    """The step as one bar of WIDTH cells, each group as long as its share (largest remainder)."""
    import numpy as np
    from rich.text import Text

    from steptime.explain.correct import round_to_sum

    sums = _sums(explanation)
    shares = np.array([ns for *_, ns in sums], np.float64) / max(1, explanation.step.median_ns) * WIDTH
    bar = Text()
    for (resource, group, _), length in zip(sums, round_to_sum(shares, WIDTH).tolist(), strict=True):
        label = "" if length < len(group) + 2 else f" {group.replace('_', ' ')}"
        style = f"black on {_colour(resource, group)}" if resource != "idle" else f"white on {IDLE_COLOUR}"
        bar.append(label.ljust(length)[:length], style=style)
    return bar


def _phase_line(explanation: Explanation) -> RenderableType:
    from rich.text import Text

    total = max(1, explanation.step.median_ns)
    shares = [(phase, explanation.ns(phase=phase) / total) for phase in PHASES]
    return Text("  ".join(f"{phase} {share:.0%}" for phase, share in shares if share >= 0.005), style="dim")


def _table(*columns: tuple[str, str]) -> tuple:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, width=WIDTH, header_style="dim")
    for title, justify in columns:
        wide = justify == "wide"
        table.add_column(
            title,
            justify="left" if wide or justify == "left" else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if wide else None,
        )
    return (table,)


def _cells(explanation: Explanation) -> RenderableType:
    from rich.text import Text

    total = explanation.step.median_ns
    phases = [phase for phase in PHASES if explanation.ns(phase=phase) >= SMALL * total]
    (table,) = _table(("where the step goes", "wide"), ("ms", "right"), ("interval", "right"), ("share", "right"),
                      *((PHASE_HEADS[phase], "right") for phase in phases))  # fmt: skip
    small = 0
    for resource, group, ns in _sums(explanation):
        if ns < SMALL * total:
            small += ns
            continue
        cells = [cell for cell in explanation.corrected if (cell.resource, cell.group) == (resource, group)]
        low, high = sum(cell.low_ns for cell in cells), sum(cell.high_ns for cell in cells)
        by_phase = [sum(cell.ns for cell in cells if cell.phase == phase) / total for phase in phases]
        table.add_row(
            Text("■ ", style=_colour(resource, group)).append(words_of(resource, group), style="default"),
            _ms(ns),
            f"{_ms(low)} .. {_ms(high)}",
            f"{ns / total:.1%}",
            *(f"{share:.0%}" if share >= 0.005 else "" for share in by_phase),
        )
    if small:
        table.add_row(Text("  smaller ones together", style="dim"), _ms(small), "", f"{small / total:.1%}")
    table.add_row(Text("  step", style="bold"), Text(_ms(total), style="bold"),
                  f"{_ms(explanation.step.low_ns)} .. {_ms(explanation.step.high_ns)}", "100%",
                  *(f"{explanation.ns(phase=phase) / total:.0%}" for phase in phases))  # fmt: skip
    return table


def _operations(ops: tuple[OpRow, ...]) -> RenderableType:
    shown = _without_modules(ops)[:OPS_SHOWN]
    fast = any(op.flops and op.self_ns and op.flops / op.self_ns >= 1e4 for op in shown)
    scale, unit = (1e3, "TFLOP/s") if fast else (1.0, "GFLOP/s")  # FLOPs per ns are GFLOP/s
    (table,) = _table(("the ops that take most", "wide"), ("shapes", "left"), ("phase", "left"), ("calls", "right"),
                      ("ms", "right"), (unit, "right"))  # fmt: skip
    for op in shown:
        name = op.name.removeprefix("aten::").replace("autograd::engine::evaluate_function: ", "autograd ")
        caller = op.caller.removeprefix("aten::")
        within = "" if caller == name or name.startswith("autograd ") else f" ({caller})"
        rate = f"{op.flops / op.self_ns / scale:.1f}" if op.flops and op.self_ns else ""
        shapes = " ".join("x".join(map(str, shape)) for shape in op.shapes[:2])
        table.add_row(name + within, shapes[:22], op.phase, f"{op.calls_per_step:g}", _ms(op.self_ns), rate)
    return table


def _without_modules(ops: tuple[OpRow, ...]) -> list[OpRow]:
    """The rows of equal op, shapes and phase added up over the modules that call them, most time first."""
    sums: dict[tuple, OpRow] = {}
    for op in ops:
        key = (op.name, op.caller, op.shapes, op.phase)
        seen = sums.get(key)
        sums[key] = (
            op
            if seen is None
            else replace(
                seen,
                calls_per_step=seen.calls_per_step + op.calls_per_step,
                self_ns=seen.self_ns + op.self_ns,
                flops=None if seen.flops is None or op.flops is None else seen.flops + op.flops,
            )
        )
    return sorted(sums.values(), key=lambda op: -op.self_ns)


def _gap_table(explanation: Explanation, gaps: list) -> RenderableType:
    (table,) = _table(("while nothing computes", "left"), ("between", "wide"), ("phase", "left"), ("ms", "right"),
                      ("share", "right"))  # fmt: skip
    for gap in gaps:
        share = gap.ns / explanation.step.median_ns
        table.add_row(gap.cause.replace("_", " "), gap.source, gap.phase, _ms(gap.ns), f"{share:.1%}")
    return table


def _rank_table(explanation: Explanation) -> RenderableType:
    (table,) = _table(("rank", "wide"), ("step ms", "right"), ("traced ms", "right"), ("exposed comm. ms", "right"),
                      ("idle ms", "right"))  # fmt: skip
    for rank in explanation.ranks:
        table.add_row(
            str(rank.rank),
            _ms(rank.step_ns),
            _ms(rank.traced_step_ns),
            _ms(rank.exposed_communication_ns),
            _ms(rank.idle_ns),
        )
    return table


def _utilisation(explanation: Explanation) -> Iterable[str]:
    for row in explanation.utilisation:
        if row.compute_ns < SMALL * explanation.step.median_ns:
            continue
        rate = row.achieved_bytes_per_s / 1e9
        memory = f"{rate:.3g} GB/s" + (f" of {row.ceiling_bytes_per_s / 1e9:.3g}" if row.ceiling_bytes_per_s else "")
        if row.work == "streaming":
            yield f"{row.dtype} streaming ops: {memory} in {duration(row.compute_ns)} a step"
            continue
        flops = f"{row.achieved_flops_per_s / 1e9:.3g} GFLOP/s"
        if row.ceiling_flops_per_s:
            flops += (
                f" of {row.ceiling_flops_per_s / 1e9:.3g} ({row.achieved_flops_per_s / row.ceiling_flops_per_s:.0%})"
            )
        side = f", {row.intensity:.0f} FLOP/byte: {row.side}-bound side" if row.side else ""
        yield f"{row.dtype} arithmetic: {flops} in {duration(row.compute_ns)} a step{side}"
    if explanation.mfu is not None:
        yield f"MFU {explanation.mfu:.1%} of this machine's measured ceilings"
    elif not any(row.ceiling_flops_per_s for row in explanation.utilisation):
        yield "MFU: not known; run `steptime probe` to measure this machine's ceilings"


def _notes(explanation: Explanation) -> Iterable[str]:
    step = explanation.step
    if step.measured == "untraced":
        yield (
            f"Step time: median of {step.n} untraced steps, {duration(step.low_ns)} to {duration(step.high_ns)} (95% "
            "interval of the median)."
        )
    if explanation.inflation is not None:
        steps = f"{explanation.breakdown.steps} traced steps"
        if explanation.inflation >= 1:
            yield (
                f"Tracing made the step {explanation.inflation:.2f}x as long: {duration(explanation.traced_step_ns)} "
                f"over {steps}. The split above has that taken out; the intervals say how sure it is."
            )
        else:
            yield (
                f"The {steps} took {duration(explanation.traced_step_ns)}, less than the untraced ones: this machine's "
                "speed varies more than tracing costs, so the split is scaled only."
            )
    for note in (*explanation.notes, *explanation.dropped):
        yield note[:1].upper() + note[1:] + "."


def _ms(ns: float) -> str:
    value = ns / 1e6
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"
