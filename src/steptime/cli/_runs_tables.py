"""How `steptime runs` looks: rich tables of ledger rows."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from steptime.cli._runs_cells import ratio, saving, status, step_time, table

if TYPE_CHECKING:
    from steptime.ledger import ArtefactRow, PredictionRow, RunComparison, RunRow, VerdictRow

SHORT = 8
"""Characters of an id that are shown; a prefix is enough to name a run."""


def print_runs(console: Console, runs: Sequence[RunRow]) -> None:
    """One line a run."""
    if not runs:
        console.print("no runs yet: `steptime explain -- python train.py` makes one")
        return
    rows = table("run", "started", "kind", "status", "step time", "command")
    for run in runs:
        started = run.created.astimezone().strftime("%Y-%m-%d %H:%M")
        rows.add_row(run.id[:SHORT], started, run.kind, status(run), step_time(run), Text(shlex.join(run.command)))
    console.print(rows)


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
        rows = table("remedy", "predicted saving", "measured", "speed", "verdict", "why")
        for verdict in verdicts:
            guess = measured.pop(verdict.prediction or "", None)
            rows.add_row(verdict.remedy, *saving(guess), ratio(verdict), verdict.decision, Text(verdict.why))
        for guess in measured.values():
            rows.add_row(guess.remedy, *saving(guess), "", "", Text(guess.basis))
        console.print(rows)
    for artefact in artefacts:
        console.print(Text(f"{artefact.kind}: {artefact.path}"))


def print_comparison(console: Console, found: RunComparison) -> None:
    """Step times, and what differed."""
    print_runs(console, [found.a, found.b])
    if found.speedup is not None:
        interval = "" if found.speedup_low is None else f" ({found.speedup_low:.2f} .. {found.speedup_high:.2f})"
        console.print(f"second against first: {found.speedup:.2f}x{interval}; not interleaved, so no verdict")
    rows = table("differs", found.a.id[:SHORT], found.b.id[:SHORT])
    for difference in found.differences:
        rows.add_row(Text(difference.name), _value(difference.a), _value(difference.b))
    console.print(rows if found.differences else "nothing else differs")


def _facts(run: RunRow) -> list[tuple[str, str]]:
    git = run.git or {}
    dirty = " with uncommitted changes" if git.get("dirty") else ""
    facts = {
        "run": run.id,
        "kind": run.kind,
        "status": status(run),
        "started": run.created.astimezone().isoformat(timespec="seconds"),
        "command": shlex.join(run.command),
        "in": run.cwd,
        "step time": step_time(run),
        "code": f"{git.get('commit') or 'no commit'}{dirty}" if git else "",
        "python": run.python,
        "torch": run.torch,
        "hardware": run.hardware,
        "seeds": json.dumps(run.seeds) if run.seeds else "",
        "plan": json.dumps(run.plan) if run.plan else "",
    }
    return [(name, value) for name, value in facts.items() if value]


def _value(value: Any) -> Text:
    return Text("-" if value is None else value if isinstance(value, str) else json.dumps(value))
