"""Every finding, with the cells, ops and lines that it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.explain import CorrectedCell, Explanation
from steptime.report import numbers, palette
from steptime.report.blocks import Absent, Block, Column, FindingBlock, Row, Section, Table, table
from steptime.report.charts_step import kind
from steptime.report.sections_ops import merge_ops, ops_table

_MOST_OPS = 12


def findings_section(explanation: Explanation | None) -> Section | None:
    """Every finding with the cells, ops and lines it rests on."""
    if explanation is None:
        return None
    blocks: list[Block] = [_finding(finding, explanation) for finding in explanation.findings]
    if not blocks:
        blocks.append(Absent("No findings are recorded in this explanation."))
    return Section(id="findings", title="Findings", blocks=tuple(blocks))


_TOLD = frozenset(
    {"title", "detail", "resource", "group", "phase", "ns", "low_ns", "high_ns", "share", "cells", "ops", "sources"}
    | {"remedies"}
)
"""What has a place of its own in a finding; anything else is listed with its evidence."""


def _finding(finding: Mapping[str, Any], explanation: Explanation) -> FindingBlock:
    """A finding's sentence and size, and what the explanation holds on the cells it names."""
    whole = explanation.step.median_ns
    lines = []
    if finding.get("ns") is not None:
        size = numbers.duration_interval(finding["ns"], finding.get("low_ns"), finding.get("high_ns"))
        lines.append(f"{size} per step.")
    lines.append(numbers.sentence(str(finding.get("detail") or "")))
    if finding.get("remedies"):
        lines.append(f"Known remedies: {', '.join(map(str, finding['remedies']))}.")
    cells = [cell for cell in explanation.corrected if _names(finding, cell.resource, cell.group, cell.phase)]
    ops = [op for op in explanation.ops if _names(finding, op.resource, op.group, op.phase)]
    if not ops:
        ops = [op for op in explanation.ops if op.name in _listed(finding, "ops")]
    tables = []
    if cells:
        tables.append(_evidence_cells(cells, whole))
    if ops:
        tables.append(ops_table(merge_ops(ops)[:_MOST_OPS], whole))
    pairs = [(str(key).replace("_", " "), _said(value)) for key, value in finding.items() if key not in _TOLD]
    sources = _listed(finding, "sources")
    if sources:
        pairs.append(("lines, or the ops around them", "; ".join(sources)))
    return FindingBlock(
        title=str(finding.get("title") or "finding"),
        text=" ".join(line for line in lines if line),
        pairs=tuple(pairs),
        tables=tuple(tables),
    )


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
