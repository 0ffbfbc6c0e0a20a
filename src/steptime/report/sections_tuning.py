"""What tuning did: each remedy predicted and measured, and whether the script still learns the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steptime.report import numbers
from steptime.report.blocks import (
    Absent,
    Block,
    Column,
    Heading,
    Note,
    Pairs,
    RemedyLine,
    RemedyList,
    Row,
    Section,
    Table,
    TableBlock,
    Text,
    figure,
    table,
)
from steptime.report.charts_quality import difference_text, equivalence, finite_pairs, paired_seeds
from steptime.report.charts_remedies import drawn_here, remedy_dots
from steptime.report.tuning import Loss, Remedy, Tuning


def remedies_section(tuning: Tuning | None) -> Section | None:
    """Prediction beside measurement for every remedy, also those that were not tried."""
    if tuning is None:
        return None
    title = "Predicted and measured"
    if not tuning.remedies:
        return Section(id="remedies", title=title, blocks=(Absent("No remedy applies to this step."),))
    blocks: list[Block] = []
    if any(drawn_here(remedy) for remedy in tuning.remedies):
        caption = (
            "Time saved per step. Band: the interval predicted before the trial (P10 to P90), its line the median; "
            "dot: measured by interleaved blocks, with its confidence interval. Left of zero the step became slower."
        )
        blocks.append(figure(lambda width: remedy_dots(tuning.remedies, width), caption))
    tried = [remedy for remedy in tuning.remedies if not remedy.untried]
    untried = [remedy for remedy in tuning.remedies if remedy.untried]
    if tried:
        blocks.append(RemedyList(tuple(_remedy_line(remedy) for remedy in tried)))
    if untried:
        blocks.append(Heading("Not tried, and why"))
        blocks.append(TableBlock(_untried_table(untried)))
    if tuning.compile_s:
        cost = f"Compiling costs {numbers.duration(1e9 * tuning.compile_s)} once"
        even = tuning.break_even_steps
        blocks.append(Note(f"{cost}, earned back after {numbers.count(even)} steps." if even else f"{cost}."))
    blocks.extend(Note(note) for note in tuning.notes)
    return Section(id="remedies", title=title, blocks=tuple(blocks))


def _remedy_line(remedy: Remedy) -> RemedyLine:
    lines = []
    if remedy.predicted:
        lines.append(f"Predicted {remedy.predicted} saved per step.")
    if remedy.measured:
        said = f"Measured {remedy.measured}"
        if remedy.error is not None:
            said += f"; the prediction is off by {numbers.signed_text(f'{100 * remedy.error:+.0f}%')}"
        lines.append(said + ".")
    if remedy.why:
        lines.append(numbers.sentence(remedy.why))
    if remedy.basis:
        lines.append(numbers.sentence(f"Basis: {remedy.basis}"))
    if remedy.patch:
        lines.append("Plan: " + ", ".join(f"{name} = {value}" for name, value in remedy.patch.items()))
    return RemedyLine(name=remedy.name, verdict=remedy.verdict, tone=remedy.tone, lines=tuple(lines))


def _untried_table(remedies: Sequence[Remedy]) -> Table:
    rows = [
        Row(
            cells=(
                remedy.name,
                str(remedy.predicted) if remedy.predicted else numbers.MISSING,
                numbers.sentence(remedy.why),
                ", ".join(f"{name} = {value}" for name, value in remedy.patch.items()),
            )
        )
        for remedy in remedies
    ]
    columns = [
        Column(head="remedy", wide=True),
        Column(head="predicted to save", number=True),
        Column(head="why it was not tried", wide=True),
        Column(head="plan", code=True, wide=True),
    ]
    return table("Not tried, and why", columns, rows)


def quality_section(tuning: Tuning | None) -> Section | None:
    """The paired seeds of every loss, and the equivalence interval against its margin."""
    if tuning is None:
        return None
    blocks: list[Block] = [Text(_quality_sentence(tuning))]
    for loss in tuning.losses:
        blocks.extend(_loss_blocks(loss, alone=len(tuning.losses) == 1))
    if not tuning.losses:
        blocks.append(Absent("No losses of paired seeds are recorded, so there is nothing to draw."))
    if tuning.quality_facts:
        blocks.append(Pairs(pairs_of(tuning.quality_facts)))
    return Section(id="quality", title="Does it still learn the same?", blocks=tuple(blocks))


def _quality_sentence(tuning: Tuning) -> str:
    return f"Verdict: {tuning.quality}. {numbers.sentence(tuning.quality_why)}".strip()


def _loss_blocks(loss: Loss, *, alone: bool) -> list[Block]:
    blocks: list[Block] = []
    if not alone or loss.verdict:
        blocks.append(Heading(f"{loss.name}: {loss.verdict}" if loss.verdict else loss.name))
    if loss.baseline and loss.tuned:
        whole = finite_pairs(loss)
        if whole:
            blocks.append(figure(lambda width: paired_seeds(loss, width)))
        lost = min(len(loss.baseline), len(loss.tuned)) - len(whole)
        if lost:
            blocks.append(Absent(f"{lost} pairs are not drawn: a loss in them is not a finite number."))
    if loss.margin is not None and loss.difference is not None and loss.low is not None and loss.high is not None:
        inside = -loss.margin < loss.low and loss.high < loss.margin
        said = "lies inside the margin: equivalent" if inside else "reaches beyond the margin: equivalence is not shown"
        caption = f"Mean paired difference {difference_text(loss)}; the interval {said}."
        blocks.append(figure(lambda width: equivalence(loss, width), caption))
    if loss.facts:
        blocks.append(Pairs(pairs_of(loss.facts)))
    return blocks


def pairs_of(data: Mapping[str, Any], prefix: str = "") -> tuple[tuple[str, str], ...]:
    """A nested record as flat names and values, empty ones left out."""
    found: list[tuple[str, str]] = []
    for key, value in data.items():
        name = f"{prefix}{str(key).replace('_', ' ')}"
        if isinstance(value, Mapping):
            found.extend(pairs_of(value, f"{name}: "))
        elif isinstance(value, list | tuple):
            if value:
                # a command is a list of words
                found.append((name, (" " if key == "command" else ", ").join(_plain(item) for item in value)))
        elif value is not None and value != "":
            size = isinstance(value, int) and name.endswith(" bytes")
            found.append((name.removesuffix(" bytes"), numbers.si(value, "B")) if size else (name, _plain(value)))
    return tuple(found)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return numbers.signed_text(f"{value:.4g}")
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    return str(value)
