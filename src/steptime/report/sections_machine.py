"""The step against the machine: roofline, utilisation, and the ranks beside each other."""

from __future__ import annotations

from steptime.explain import Explanation, RankRow
from steptime.report import numbers
from steptime.report.blocks import Absent, Block, Column, Heading, Row, Section, Table, TableBlock, Text, figure, table
from steptime.report.charts_roofline import MOST_POINTS, points, roofline
from steptime.report.sections_ops import merge_ops

_SMALL_SHARE = 0.001
"""Dtypes below this share of the step are left out of the table."""
_NO_CEILINGS = (
    "This machine's ceilings are not known, so nothing says how far the ops are from them: run steptime probe."
)


def roofline_section(explanation: Explanation | None) -> Section | None:
    """The ops under the measured ceilings, and what bounds them."""
    if explanation is None:
        return None
    title = "Against the ceilings of this machine"
    ops = merge_ops(explanation.ops)
    found = points(ops, explanation.utilisation)
    if not found:
        reason = "No op of the step has both a FLOP formula and known bytes (the trace may lack input shapes)."
        return Section(id="roofline", title=title, blocks=(Absent(reason),))
    step = explanation.step.median_ns
    blocks: list[Block] = []
    drawn_ns = sum(point.op.self_ns for point in found)
    bound = {side: sum(p.op.self_ns for p in found if p.side == side) for side in ("compute", "memory")}
    said = f"Ops with a FLOP formula take {numbers.share(drawn_ns, step)} of the step; the rest is not in this picture."
    if len(found) > MOST_POINTS:
        said += f" The {MOST_POINTS} longest of {len(found)} are drawn."
    if any(bound.values()):
        said += (
            f" Of the step, {numbers.share(bound['compute'], step)} is under the flat roof (compute-bound ops) and "
            f"{numbers.share(bound['memory'], step)} under the slope (memory-bound ops)."
        )
    blocks.append(Text(said))
    caption = (
        "Each circle is an op with its input shapes, its area the time it takes in the step, its colour its group. "
        "The roofs are what steptime probe measured here. Bytes are inputs and outputs, each moved once: an op whose "
        "operands stay in a cache can stand above the slope."
    )
    blocks.append(figure(lambda width: roofline(ops, explanation.utilisation, width, step), caption))
    if not any(row.ceiling_flops_per_s for row in explanation.utilisation):
        blocks.append(Absent(_NO_CEILINGS))
    return Section(id="roofline", title=title, blocks=tuple(blocks))


def utilisation_section(explanation: Explanation | None) -> Section | None:
    """MFU, achieved rates by dtype, and the ranks."""
    if explanation is None:
        return None
    blocks: list[Block] = []
    if explanation.mfu is not None:
        blocks.append(
            Text(
                f"Model FLOP utilisation (MFU): {numbers.percent(explanation.mfu)}. At the measured ceilings the "
                "step's FLOPs would take that share of its time."
            )
        )
    else:
        blocks.append(Absent("MFU is not known: " + _NO_CEILINGS))
    if explanation.utilisation:
        blocks.append(TableBlock(_by_dtype(explanation)))
    if len(explanation.ranks) > 1:
        blocks.append(Heading("Ranks"))
        blocks.append(TableBlock(_ranks(explanation.ranks)))
    return Section(id="utilisation", title="Utilisation", blocks=tuple(blocks))


def _by_dtype(explanation: Explanation) -> Table:
    rows = [
        Row(
            cells=(
                f"{row.dtype}, {row.work}",
                numbers.si(row.flops, "FLOP") if row.flops else numbers.MISSING,
                numbers.duration(row.compute_ns),
                numbers.si(row.achieved_flops_per_s, "FLOP/s") if row.flops else numbers.MISSING,
                numbers.si(row.ceiling_flops_per_s, "FLOP/s") if row.flops else numbers.MISSING,
                numbers.percent(
                    row.achieved_flops_per_s / row.ceiling_flops_per_s
                    if row.flops and row.ceiling_flops_per_s
                    else None
                ),
                numbers.si(row.achieved_bytes_per_s, "B/s"),
                numbers.si(row.ceiling_bytes_per_s, "B/s"),
                numbers.plain(row.intensity) if row.flops else numbers.MISSING,
                row.side or numbers.MISSING,
            )
        )
        for row in explanation.utilisation
        if row.compute_ns >= _SMALL_SHARE * explanation.step.median_ns
    ]
    heads = (
        "FLOP per step",
        "in",
        "achieved",
        "ceiling",
        "of ceiling",
        "moved",
        "ceiling",
        "FLOP per byte",
    )
    columns = [
        Column(head="dtype, work"),
        *(Column(head=head, number=True) for head in heads),
        Column(head="bound by"),
    ]
    return table("Utilisation by dtype", columns, rows)


def _part(ns: int, whole: int) -> str:
    return f"{numbers.duration(ns)} ({numbers.share(ns, whole)})"


def _ranks(ranks: tuple[RankRow, ...]) -> Table:
    slowest = max(row.step_ns for row in ranks)
    rows = [
        Row(
            cells=(
                str(row.rank),
                numbers.duration(row.step_ns),
                numbers.share(row.step_ns, slowest),
                _part(row.exposed_communication_ns, row.traced_step_ns),
                _part(row.exposed_copy_ns, row.traced_step_ns),
                _part(row.idle_ns, row.traced_step_ns),
                numbers.duration(row.traced_step_ns),
            )
        )
        for row in ranks
    ]
    heads = (
        "step, untraced",
        "of the slowest",
        "exposed communication, traced",
        "exposed copy, traced",
        "idle, traced",
        "step, traced",
    )
    return table("Ranks", [Column(head="rank"), *(Column(head=head, number=True) for head in heads)], rows)
