"""How `steptime runs` looks: rich tables of ledger rows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from steptime.ledger import ArtefactRow, PredictionRow, RunComparison, RunRow, VerdictRow

SHORT = 8
"""Characters of an id that are shown; a prefix is enough to name a run."""


def print_runs(console: Console, runs: Sequence[RunRow]) -> None:
    """One line a run."""
    if not runs:
        console.print("no runs yet: `steptime explain -- python train.py` makes one")
        return
    table = _table("run", "started", "kind", "status", "step time", "command")
    for run in runs:
        started = run.created.astimezone().strftime("%Y-%m-%d %H:%M")
        table.add_row(run.id[:SHORT], started, run.kind, _status(run), _step_time(run), Text(shlex.join(run.command)))
    console.print(table)


def print_run(
    console: Console,
    run: RunRow,
    predictions: Sequence[PredictionRow],
    verdicts: Sequence[VerdictRow],
    artefacts: Sequence[ArtefactRow],
) -> None:
    """All of one run but its long lists (packages, environment: `--json` has them)."""
    facts = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _facts(run):
        facts.add_row(name, Text(value))
    console.print(facts)
    measured = {prediction.id: prediction for prediction in predictions}
    if verdicts or predictions:
        table = _table("remedy", "predicted saving", "measured", "speed", "verdict", "why")
        for verdict in verdicts:
            guess = measured.pop(verdict.prediction or "", None)
            table.add_row(verdict.remedy, *_saving(guess), _ratio(verdict), verdict.decision, Text(verdict.why))
        for guess in measured.values():
            table.add_row(guess.remedy, *_saving(guess), "", "", Text(guess.basis))
        console.print(table)
    for artefact in artefacts:
        console.print(Text(f"{artefact.kind}: {artefact.path}"))


def print_comparison(console: Console, found: RunComparison) -> None:
    """Step times, and what differed."""
    print_runs(console, [found.a, found.b])
    if found.speedup is not None:
        interval = "" if found.speedup_low is None else f" ({found.speedup_low:.2f} .. {found.speedup_high:.2f})"
        console.print(f"second against first: {found.speedup:.2f}x{interval}; not interleaved, so no verdict")
    table = _table("differs", found.a.id[:SHORT], found.b.id[:SHORT])
    for difference in found.differences:
        table.add_row(Text(difference.name), _value(difference.a), _value(difference.b))
    console.print(table if found.differences else "nothing else differs")


def _facts(run: RunRow) -> list[tuple[str, str]]:
    git = run.git or {}
    dirty = " with uncommitted changes" if git.get("dirty") else ""
    facts = {
        "run": run.id,
        "kind": run.kind,
        "status": _status(run),
        "started": run.created.astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(run.command),
        "in": run.cwd,
        "step time": _step_time(run),
        "code": f"{git.get('commit') or 'no commit'}{dirty}" if git else "",
        "python": run.python,
        "torch": run.torch,
        "hardware": run.hardware,
        "seeds": json.dumps(run.seeds) if run.seeds else "",
        "plan": json.dumps(run.plan) if run.plan else "",
    }
    return [(name, value) for name, value in facts.items() if value]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _status(run: RunRow) -> str:
    from steptime.ledger import is_lost

    if is_lost(run):
        return "lost (its process is gone)"
    return run.status if not run.exit_code else f"{run.status} ({run.exit_code})"


def _step_time(run: RunRow) -> str:
    if run.step_s is None:
        return ""
    interval = "" if run.step_low_s is None else f" ({_ms(run.step_low_s)} .. {_ms(run.step_high_s)})"
    return f"{_ms(run.step_s)} ms{interval}"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.4g}"


def _saving(guess: PredictionRow | None) -> tuple[str, str]:
    if guess is None:
        return "", ""
    return f"{_ms(guess.predicted_s)} ms ({_ms(guess.low_s)} .. {_ms(guess.high_s)})", _ms(guess.measured_s)


def _ratio(verdict: VerdictRow) -> str:
    if verdict.speed_ratio is None:
        return ""
    interval = "" if verdict.speed_low is None else f" ({verdict.speed_low:.2f} .. {verdict.speed_high:.2f})"
    return f"{verdict.speed_ratio:.2f}x{interval}"


def _value(value: Any) -> Text:
    return Text("-" if value is None else value if isinstance(value, str) else json.dumps(value))
