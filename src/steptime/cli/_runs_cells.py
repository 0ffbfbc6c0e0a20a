"""The cells of `steptime runs`: rows of the ledger as short text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from steptime.ledger import PredictionRow, RunRow, VerdictRow


def table(*columns: str) -> Table:
    """An empty table without lines, whose long cells go on below."""
    made = Table(box=None, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def status(run: RunRow) -> str:
    """How a run ended, or that nobody will tell."""
    from steptime.ledger import is_lost

    if is_lost(run):
        return "lost (its process is gone)"
    return run.status if not run.exit_code else f"{run.status} ({run.exit_code})"


def step_time(run: RunRow) -> str:
    """Median with interval, in milliseconds; empty where there is none."""
    if run.step_s is None:
        return ""
    interval = "" if run.step_low_s is None else f" ({ms(run.step_low_s)} .. {ms(run.step_high_s)})"
    return f"{ms(run.step_s)} ms{interval}"


def ms(seconds: float | None) -> str:
    """Seconds as milliseconds, without the unit."""
    return "" if seconds is None else f"{seconds * 1e3:.4g}"


def saving(guess: PredictionRow | None) -> tuple[str, str]:
    """What a remedy was predicted to save a step, and what it saved."""
    if guess is None:
        return "", ""
    return f"{ms(guess.predicted_s)} ms ({ms(guess.low_s)} .. {ms(guess.high_s)})", ms(guess.measured_s)


def ratio(verdict: VerdictRow) -> str:
    """Speed-up with interval; empty where none was measured."""
    if verdict.speed_ratio is None:
        return ""
    interval = "" if verdict.speed_low is None else f" ({verdict.speed_low:.2f} .. {verdict.speed_high:.2f})"
    return f"{verdict.speed_ratio:.2f}x{interval}"
