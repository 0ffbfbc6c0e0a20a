"""Runs that explain and run leave in the ledger, as a user finds them; the script comes first."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
SCRIPT = """
import sys
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(80):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
sys.exit(3)
"""


def steptime(folder: Path, home: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "STEPTIME_HOME": home}
    command = [sys.executable, "-m", "steptime.cli", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.spawned
def test_explain_and_run_are_found_in_the_ledger_with_step_time_and_exit_code(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "plan.toml").write_text("version = 1\n[process]\nthreads = 1\n")
    home = str(tmp_path / "home")
    explained = steptime(tmp_path, home, "explain", "--json", "--", sys.executable, "train.py")
    assert explained.returncode == 3, explained.stderr
    ran = steptime(tmp_path, home, "run", "--plan", "plan.toml", "--", sys.executable, "train.py")
    assert ran.returncode == 3, ran.stderr
    runs = json.loads(steptime(tmp_path, home, "runs", "--json").stdout)
    assert {(run["kind"], run["exit_code"], run["status"]) for run in runs} == {
        ("run", 3, "failed"),
        ("explain", 3, "failed"),
    }
    by_kind = {run["kind"]: run for run in runs}
    assert by_kind["run"]["plan"] == {"process": {"threads": 1}}
    assert by_kind["explain"]["step_s"] == json.loads(explained.stdout)["step"]["median_ns"] / 1e9
    assert by_kind["run"]["step_low_s"] <= by_kind["run"]["step_s"] <= by_kind["run"]["step_high_s"]
    assert by_kind["run"]["hardware"] == by_kind["explain"]["hardware"] is not None
    report = steptime(tmp_path, home, "report", by_kind["explain"]["id"])
    assert (report.returncode, (tmp_path / "report.html").exists()) == (0, True), report.stderr


@pytest.mark.spawned
def test_a_ledger_that_cannot_be_written_changes_nothing_but_one_line(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "plan.toml").write_text("version = 1\n")
    ran = steptime(tmp_path, "/proc/nowhere", "run", "--plan", "plan.toml", "--", sys.executable, "train.py")
    assert ran.returncode == 3
    assert len(ran.stderr.splitlines()) == 1
    assert "not in the ledger" in ran.stderr
