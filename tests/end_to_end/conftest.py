"""steptime as a user types it, on a copy of one of the scripts in a folder of its own."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steptime.attach import SessionRecord, read_session

SOURCE = Path(__file__).resolve().parents[2] / "src"
SCRIPTS = Path(__file__).with_name("scripts")

NO_SLEEP = '''"""The script sleeps for nothing."""
SAVES = (0.2, 0.6, 0.9)


def apply(report):
    import time

    sleep = time.sleep
    time.sleep = lambda seconds: None if seconds in (0.002, 0.004, 0.008) else sleep(seconds)
    report("no_sleep", True, "the script's pauses are skipped")
'''
NAP = '''"""Promises much and only sleeps."""
SAVES = (0.05, 0.1, 0.3)


def apply(report):
    import time

    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *_: time.sleep(0.005))
    report("nap", True, "every optimizer step is followed by a nap")
'''


class User:
    """One script, and what a user does with it. Everything lies in `folder`."""

    def __init__(self, folder: Path, script: str, launcher: tuple[str, ...]) -> None:
        self.folder = folder
        self._script = [*launcher, f"{script}.py"]
        shutil.copy(SCRIPTS / f"{script}.py", folder)
        (folder / "no_sleep.py").write_text(NO_SLEEP)
        (folder / "nap.py").write_text(NAP)
        self._own = {"no_sleep.py", "nap.py", f"{script}.py", "home", "explained", "plan.toml"}

    def types(self, *arguments: str, steps: int) -> subprocess.CompletedProcess[str]:
        """`steptime <arguments> -- <script> <steps>`."""
        return subprocess.run(
            [sys.executable, "-m", "steptime.cli", *arguments, "--", *self._script, str(steps)],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": str(SOURCE),
                "OMP_NUM_THREADS": "1",
                "STEPTIME_HOME": str(self.folder / "home"),
                "HF_HUB_OFFLINE": "1",
            },
            capture_output=True,
            text=True,
            timeout=1500,
        )

    def explains(self) -> tuple[dict[str, Any], dict[str, float]]:
        """`explain`, ended once everything is measured; the JSON, and the agent's spans in a traced step by name."""
        done = self.types("explain", "--json", "--stop", "--out", "explained", steps=100_000)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout), _spans_per_step(read_session(self.folder / "explained"))

    def tunes(self) -> dict[str, Any]:
        """`tune` with one remedy that helps and one that does not; the JSON."""
        words = "tune --json --budget 20m --quality-steps 30 --remedies no_sleep.py --remedies nap.py"
        done = self.types(*words.split(), "--only", "no_sleep", "--only", "nap", steps=100_000)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        assert "Traceback" not in done.stderr
        return result

    def left_behind(self) -> set[str]:
        """What lies in the folder beside what steptime was asked to write."""
        return {path.name for path in self.folder.iterdir()} - self._own


@pytest.fixture
def user(tmp_path: Path) -> Callable[..., User]:
    """`user(script, *launcher)`."""

    def of(script: str, *launcher: str) -> User:
        return User(tmp_path, script, launcher or (sys.executable,))

    return of


def _spans_per_step(record: SessionRecord) -> dict[str, float]:
    """Of the first rank."""
    assert record.ranks[0].trace is not None
    events = json.loads(gzip.decompress(record.ranks[0].trace.read_bytes()))["traceEvents"]
    spans = [event for event in events if str(event.get("name")).startswith("steptime.") and event.get("ph") == "X"]
    steps = [event for event in spans if event["name"].startswith("steptime.step#")]
    assert steps
    inside = Counter(
        span["name"]
        for span in spans
        for step in steps
        if step is not span and step["ts"] <= span["ts"] and span["ts"] + span["dur"] <= step["ts"] + step["dur"]
    )
    return {name: count / len(steps) for name, count in inside.items()}
