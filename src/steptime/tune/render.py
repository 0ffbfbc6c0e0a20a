"""The tune result on a terminal: the table that a user wants to see, then what to do with it."""

from __future__ import annotations

import shlex

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from steptime.tune.result import RemedyResult, TuneResult

_STYLES = {"kept": "green", "rejected": "red", "refused": "red", "undecided": "yellow", "not tried": "dim"}


def render(result: TuneResult, *, plan_path: str | None = None) -> RenderableType:
    """Headline, table, proof, and the next command."""
    parts: list[RenderableType] = [_headline(result), Text(), _table(result)]
    untried = [remedy for remedy in result.remedies if remedy.verdict == "not tried"]
    if untried:
        parts.append(Text("\nnot tried", style="bold"))
        parts += [Text(f"  {remedy.name}: {remedy.why}", style="dim") for remedy in untried]
    parts.append(Text(f"\nquality: {result.quality.verdict} ({result.quality.why})"))
    parts += _evidence(result)
    if plan_path is not None and result.kept:
        words = ["--plan", plan_path, *(word for path in result.setup.extra for word in ("--remedies", str(path)))]
        command = shlex.join([*words, "--", *result.command])
        parts.append(Text(f"\n{plan_path} is written; run it: steptime run {command}"))
    return Group(*parts)


def _headline(result: TuneResult) -> Text:
    duel = result.confirmation
    if duel is None:
        return Text(f"Nothing proved faster: the step stays at {_ms(result.step_s)}.", style="bold")
    gain = duel.gain
    return Text(
        f"{gain.ratio:.2f}x faster ({gain.low:.2f} .. {gain.high:.2f}): a step takes {_ms(duel.candidate_s)} "
        f"instead of {_ms(duel.baseline_s)}; quality {result.quality.verdict}.",
        style="bold",
    )


def _table(result: TuneResult) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("remedy")
    table.add_column("predicted ms", justify="right")
    table.add_column("measured ms", justify="right")
    table.add_column("error", justify="right")
    table.add_column("verdict")
    table.add_column("why", overflow="fold")
    for remedy in result.remedies:
        if remedy.verdict != "not tried":
            table.add_row(*_row(remedy))
    return table


def _row(remedy: RemedyResult) -> tuple[RenderableType, ...]:
    prediction, duel = remedy.proposal.prediction, remedy.duel
    return (
        remedy.name,
        _triple(prediction.saved_s, prediction.low_s, prediction.high_s) if prediction else "",
        _triple(*duel.saved_s) if duel else "",
        # of a gain that is not there, the error of its prediction says nothing
        f"{100 * remedy.error:+.0f} %" if remedy.error is not None and remedy.verdict == "kept" else "",
        Text(remedy.verdict, style=_STYLES[remedy.verdict]),
        remedy.why,
    )


def _triple(point: float, low: float, high: float) -> str:
    return f"{1e3 * point:.1f} ({1e3 * low:.1f}..{1e3 * high:.1f})"


def _evidence(result: TuneResult) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if result.confirmation is not None:
        gain = result.confirmation.gain
        lines.append(
            Text(f"confirmed in fresh processes: {gain.pairs} pairs of blocks of {result.confirmation.steps} steps")
        )
    if result.break_even_steps is not None:
        lines.append(
            Text(f"compilation takes {result.compile_s:.0f} s and pays after {result.break_even_steps:,} steps")
        )
    lines += [Text(f"note: {note}") for note in result.notes]
    return lines


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def print_result(result: TuneResult, console: Console, *, plan_path: str | None = None) -> None:
    """Prints the result; on a narrow terminal the reasons wrap."""
    console.print(render(result, plan_path=plan_path))
