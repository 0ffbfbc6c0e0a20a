"""Runs a training script under a Plan, and keeps its step time in the ledger."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steptime.attach import SessionRecord, SessionSpec, launch, read_session
from steptime.errors import SteptimeError
from steptime.explain.correct import bootstrap_medians
from steptime.explain.note import RunNote, Series
from steptime.explain.remedies import read_remedy
from steptime.plan import Plan, process_environment, unmet

_UNTRACED = 1
_MOST_STEPS = 2_000
"""Of a long run so many steps, spread over it, tell the median and its interval."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The script's exit code, and a line for each field of the plan that did not take effect."""

    exit_code: int
    unmet: tuple[str, ...]
    run_id: str | None = None


def run_script(
    command: Sequence[str],
    plan: Plan,
    *,
    remedies: Sequence[Path] = (),
    folder: Path | None = None,
    warn: Callable[[str], None],
) -> RunResult:
    """Runs `command` under `plan`; its output, input and signals pass through.

    Args:
        command: program and arguments.
        plan: what is changed.
        remedies: files of the user's own remedies (docs/tune.md), run after the plan.
        folder: keep the session in this new folder; None: a temporary one.
        warn: told in one line when the ledger cannot be written.

    Raises:
        SteptimeError: before the launch: command not found, folder not usable, a remedy that is none.
    """
    own = [read_remedy(path)[0] for path in remedies]
    extra = tuple(remedy.extra for remedy in own if remedy.extra is not None)
    # a remedy reports under its name, the agent under the file's when it fails
    names = sorted({remedy.name for remedy in own} | {path.name for path in extra})
    spec = SessionSpec(mode="run", plan=plan.agent_json(), extra=extra, losses=False)
    with tempfile.TemporaryDirectory(prefix="steptime-run-", ignore_cleanup_errors=True) as temporary:
        session = folder or Path(temporary) / "session"
        started = launch(command, spec, folder=session, environment=process_environment(plan))
        note = note_of("run", command, warn, plan=plan)
        code = started.wait()
        record: SessionRecord | None = None
        try:
            record = read_session(session)
        except SteptimeError as problem:
            warn(str(problem))
    ranks = record.ranks if record is not None else ()
    run_id = note.end(
        exit_code=code, step_s=step_s(ranks[0].steps.durations_of(_UNTRACED)) if ranks else None, series=series(record)
    )
    lines = unmet(plan, [rank.applied for rank in ranks], own=names)
    return RunResult(exit_code=code, unmet=tuple(lines), run_id=run_id)


def note_of(kind: str, command: Sequence[str], warn: Callable[[str], None], *, plan: Plan | None = None) -> RunNote:
    """A note of a run that has just begun here."""
    values = plan.agent_json() if plan is not None else None
    return RunNote(kind, command, Path.cwd(), warn=warn, plan=values)


def step_s(durations_ns: np.ndarray) -> tuple[float, float, float] | None:
    """Median step time with its 95 % bootstrap interval, seconds; None without steps."""
    if not len(durations_ns):
        return None
    every = -(-len(durations_ns) // _MOST_STEPS)
    low, high = np.percentile(bootstrap_medians(durations_ns[::every]), [2.5, 97.5]) / 1e9
    point = float(np.median(durations_ns[::every])) / 1e9
    return point, min(float(low), point), max(float(high), point)


def series(record: SessionRecord | None) -> Series:
    """Each process's step times (seconds) with their windows (`agent.steps`)."""
    return {
        (rank.rank, rank.pid): {"step_s": rank.steps.duration_ns / 1e9, "window": rank.steps.window}
        for rank in (record.ranks if record is not None else ())
        if len(rank.steps)
    }
