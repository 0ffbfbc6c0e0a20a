"""Where the numbers come from: the command, the machine, the plan, the change by hand, and what every number means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steptime.explain import Explanation
from steptime.report.blocks import Absent, Block, Code, Column, Diff, Heading, Pairs, Row, Section, TableBlock, table
from steptime.report.sections_tuning import pairs_of
from steptime.report.tuning import Tuning

_LONG = ("packages", "environment")
_STEP = (
    ("step time", "median over the untraced steps; its interval is the 95% bootstrap interval of the median"),
    ("tracing inflation", "mean traced step / median untraced step"),
    (
        "cell",
        "an exclusive share of the step: one resource, one group, one phase; the cells sum to the step exactly",
    ),
    (
        "resource",
        "compute, then exposed communication, exposed copy, idle: time in which several happen is given to the first",
    ),
    (
        "phase",
        "data, forward, backward, optimizer, checkpoint, other: the part of the training loop a moment belongs to",
    ),
    (
        "interval of a cell",
        "spread of the untraced steps, and the two extreme ways of sharing out the overhead of tracing; "
        "a sum's interval is the sum of the ends",
    ),
    ("self time", "time in an op without the ops it calls, per step, overhead of tracing taken out"),
    ("FLOP", "from the op's formula and its input shapes, 2 per multiply-add; a dash where no formula is known"),
    ("MFU", "sum over dtypes of (FLOPs of the step / measured FLOP/s ceiling) / step time"),
    ("bound by", "memory where bandwidth × FLOP per byte is below the dtype's ceiling, compute elsewhere"),
)
_TUNING = (
    (
        "ratio",
        "step time before / after, from a confirming run of the final plan in fresh processes, interleaved in blocks",
    ),
    ("predicted", "seconds saved per step, P50 with P10 to P90, written to the ledger before the trial"),
    ("measured", "mean paired difference of interleaved blocks, with its confidence interval"),
    ("prediction error", "(predicted − measured) / measured seconds saved"),
    ("kept", "the corrected lower bound of the gain is above zero, the gain at least 1%, and the quality tests pass"),
    (
        "equivalent",
        "two one-sided tests (TOST) on paired seeds: the interval of the mean difference lies inside the stated margin",
    ),
)


def provenance_section(
    explanation: Explanation | None, tuning: Tuning | None, provenance: Mapping[str, Any] | None
) -> Section:
    """Always there: at the least it defines the numbers above."""
    blocks: list[Block] = []
    if not provenance and explanation and explanation.facts.process:
        # a session knows its command and interpreter even where no ledger was kept
        process = explanation.facts.process
        provenance = {"command": process.get("argv"), "cwd": process.get("cwd"), "python": process.get("python")}
    if provenance:
        blocks.append(Pairs(pairs_of({key: value for key, value in provenance.items() if key not in _LONG})))
        blocks.extend(_long(key, provenance[key]) for key in _LONG if provenance.get(key))
    else:
        blocks.append(Absent("No provenance was recorded with these files; a report of a run in the ledger has it."))
    if explanation:
        facts = {
            "device": explanation.facts.device,
            "torch": explanation.facts.torch,
            "framework": explanation.facts.framework,
            "threads": explanation.facts.threads,
            "world size": explanation.facts.world_size,
            "optimizers": explanation.facts.optimizers,
            "loader": explanation.facts.loader,
        }
        blocks.extend([Heading("What was seen of the script"), Pairs(pairs_of(facts))])
    if tuning:
        blocks.append(Heading("plan.toml"))
        blocks.append(
            Code(tuning.plan.rstrip()) if tuning.plan.strip() else Absent("The plan is empty: nothing was kept.")
        )
        blocks.append(Heading("The same change by hand"))
        blocks.append(
            _diff(tuning.diff)
            if tuning.diff.strip()
            else Absent("No diff could be generated; steptime run --plan applies it.")
        )
    definitions = (_STEP if explanation else ()) + (_TUNING if tuning else ())
    if definitions:
        blocks.extend([Heading("Definitions"), Pairs(definitions)])
    return Section(id="provenance", title="Provenance", blocks=tuple(blocks))


def _long(key: str, value: Mapping[str, Any]) -> TableBlock:
    rows = [Row(cells=(name, text)) for name, text in pairs_of(value)]
    columns = [Column(head="name", code=True), Column(head="value", wide=True)]
    return TableBlock(table(key, columns, rows), f"{key.capitalize()} ({len(rows)})")


def _diff(text: str) -> Diff:
    return Diff(tuple((_mark(line), line or " ") for line in text.splitlines()))


def _mark(line: str) -> str:
    if line.startswith(("+++", "---", "@@")):
        return "at"
    return {"+": "add", "-": "del"}.get(line[:1], "")
