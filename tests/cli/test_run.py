"""`steptime run` as a user types it, on a tiny script."""

from __future__ import annotations

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
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
print("fused" if optimizer.param_groups[0]["fused"] else "not fused", torch.get_num_threads())
sys.exit(3)
"""


def run(folder: Path, plan: str, *command: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "plan.toml").write_text(plan)
    words = [sys.executable, "-m", "steptime.cli", "run", "--plan", "plan.toml", "--", *command]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


@pytest.mark.spawned
def test_the_script_runs_under_the_plan_with_its_own_output_and_exit_code(tmp_path):
    plan = (
        'version = 1\n[optimizer]\nimplementation = "fused"\n'
        "[process]\nthreads = 1\n[collectives]\nstatic_graph = true\n"
    )
    done = run(tmp_path, plan, sys.executable, "train.py")
    assert (done.returncode, done.stdout) == (3, "fused 1\n"), done.stderr
    assert done.stderr.splitlines() == [
        "steptime: collectives.static_graph did not take effect: nothing to act on: no DistributedDataParallel"
    ]


@pytest.mark.spawned
@pytest.mark.parametrize(
    ("plan", "script", "line"),
    [
        (
            "version = 9\n",
            "train.py",
            "steptime: plan.toml: version is 9; this steptime reads version 1; upgrade steptime",
        ),
        (
            'version = 1\n[kernel]\ndropout = "parallel"\n',
            "train.py",
            "steptime: plan.toml: kernel is not a section of the plan; did you mean kernels?",
        ),
        ("version = 1\n", "none.py", "steptime: none.py: the script is not there"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_before_anything_starts(tmp_path, plan, script, line):
    done = run(tmp_path, plan, sys.executable, script)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line + "\n")
