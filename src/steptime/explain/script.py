"""Runs a training script once with the agent in it, and explains its step."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from steptime.attach import SessionSpec, WindowSpec, launch, read_session
from steptime.errors import SteptimeError
from steptime.explain.compose import explain_session
from steptime.explain.explanation import Explanation
from steptime.explain.quiet import look_for_others, with_note
from steptime.explain.run import note_of, series
from steptime.explain.utilisation import Ceilings

NOTHING_EXPLAINED = 2
"""Exit code where the script ended well but no step was found."""


@dataclass(frozen=True, kw_only=True)
class ScriptResult:
    """What came of the run: the script's exit code, and the explanation or the reason why there is none."""

    exit_code: int
    explanation: Explanation | None
    problem: SteptimeError | None


def explain_script(
    command: Sequence[str],
    *,
    windows: WindowSpec | None = None,
    stop: bool = False,
    folder: Path | None = None,
    stdout_to_stderr: bool = False,
    calibration: Ceilings | None = None,
    warn: Callable[[str], None] | None = None,
) -> ScriptResult:
    """Runs `command` unchanged; its output, input and signals pass through.

    Args:
        command: program and arguments.
        windows: how many steps to measure; None for the defaults.
        stop: end the script at the step boundary after everything has been measured.
        folder: keep the session (steps, trace, stacks, explanation.json) in this new folder; None: a temporary one.
        stdout_to_stderr: send what the script prints to stderr, so that stdout is ours.
        calibration: this machine's ceilings.
        warn: told in one line when the ledger cannot be written; None keeps the run out of the ledger.

    Raises:
        SteptimeError: before the launch: command not found, folder not usable.
    """
    spec = SessionSpec(mode="explain", windows=windows or WindowSpec(), stop_after_windows=stop, losses=False)
    with tempfile.TemporaryDirectory(prefix="steptime-explain-", ignore_cleanup_errors=True) as temporary:
        session = folder or Path(temporary) / "session"
        others = look_for_others()
        started = launch(command, spec, folder=session, stdout=sys.stderr.fileno() if stdout_to_stderr else None)
        note = note_of("explain", command, warn) if warn is not None else None
        code = started.wait()
        try:
            record = read_session(session)
            explanation = with_note(explain_session(record, calibration), others)
        except SteptimeError as problem:
            if note is not None:
                note.end(exit_code=code or NOTHING_EXPLAINED)
            return ScriptResult(exit_code=code, explanation=None, problem=problem)
        if note is not None:
            step = explanation.step
            seconds = (step.median_ns / 1e9, step.low_ns / 1e9, step.high_ns / 1e9)
            note.end(exit_code=code, step_s=seconds, explanation=explanation.to_json(), series=series(record))
        if folder is not None:
            write_json(explanation, folder / "explanation.json")
        return ScriptResult(exit_code=code, explanation=explanation, problem=None)


def write_json(explanation: Explanation, path: Path) -> None:
    """Writes the explanation under a temporary name, syncs, renames.

    Raises:
        SteptimeError: the file cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(explanation.to_json(), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        raise SteptimeError(f"cannot be written: {problem.strerror}", where=str(path)) from None
