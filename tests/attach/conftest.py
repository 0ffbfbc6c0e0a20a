"""Runs real scripts under the agent."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from steptime.attach import SessionRecord, SessionSpec, WindowSpec, launch, read_session

SHORT = WindowSpec(warmup_steps=2, untraced_steps=4, traced_steps=3, stack_steps=3, untraced_ms=0, stacks_ms=0)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str
    record: SessionRecord


@pytest.fixture
def run_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """`run(source, *args, spec=, before=)`: writes the script, launches it, reads the session."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    count = iter(range(100))

    def run(
        source: str, *args: str, spec: SessionSpec | None = None, before: tuple[str, ...] = (sys.executable,)
    ) -> Outcome:
        number = next(count)
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(source))
        out, err = tmp_path / f"out{number}", tmp_path / f"err{number}"
        folder = tmp_path / f"s{number}"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            started = launch(
                [*before, str(script), *args],
                spec or SessionSpec(windows=SHORT),
                folder=folder,
                stdout=stdout,
                stderr=stderr,
                cwd=tmp_path,
                environment={"OMP_NUM_THREADS": "1"},
            )
            code = started.wait()
        return Outcome(code, out.read_text(), err.read_text(), read_session(folder))

    return run


@pytest.fixture(autouse=True)
def _no_session_of_ours() -> None:
    assert "STEPTIME_SESSION" not in os.environ
