"""`steptime explain` from end to end, as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptime.explain import Explanation

TRAIN = """
import sys, time
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.2), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters())
for step in range(int(sys.argv[1])):
    loss = model(torch.randn(256, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
sys.exit(int(sys.argv[2]))
"""


def steptime(*arguments: object, cwd: Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "steptime.cli", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "STEPTIME_HOME": str(cwd / "home")},
    )


@pytest.fixture
def script(tmp_path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.mark.spawned
def test_a_script_is_explained_and_its_output_and_exit_code_pass_through(script, tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "session"
    done = steptime("explain", "--json", "--steps", 5, "--traced", 2, "--out", out, "--",
                    sys.executable, script, 4000, 3, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 3
    assert "trained" in done.stderr
    found = Explanation.from_json(json.loads(done.stdout))
    assert found.step.n >= 5
    assert found.step.measured == "untraced"
    assert found.breakdown.steps == 2
    assert found.breakdown.window == "steptime.step"
    assert sum(cell.ns for cell in found.corrected) == found.step.median_ns
    phases = {cell.phase for cell in found.corrected if cell.ns}
    assert phases >= {"forward", "backward", "optimizer"}
    assert found.ns(group="random", phase="forward") > 0
    assert found.facts.optimizers[0]["type"] == "Adam"
    product = next(op for op in found.ops if op.name == "aten::addmm")
    assert product.flops == 2 * 256 * 64 * 128 * (1 if product.shapes[1][1] == 64 else 1 / 64)
    assert json.loads((out / "explanation.json").read_text()) == json.loads(done.stdout)


@pytest.mark.spawned
def test_a_script_without_a_step_is_2_and_says_what_was_seen(tmp_path):
    path = tmp_path / "nothing.py"
    path.write_text("print('hello')\n")
    done = steptime("explain", "--", sys.executable, path, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == "hello\n"
    assert done.stderr.startswith("steptime: no training step was found")
    assert done.stderr.count("\n") == 1


@pytest.mark.spawned
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["explain"], "either traces or a script"),
        (["explain", "nowhere.json"], "No such file"),
        (["explain", "--", "python", "nowhere.py"], "nowhere.py"),
        (["explain", "trace.json", "--", "python", "x.py"], "either traces or a script"),
    ],
)
def test_bad_input_is_one_line_and_2(arguments, says, tmp_path):
    done = steptime(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.spawned
def test_traces_are_explained_in_words_on_stdout(tmp_path):
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 100},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10, "dur": 80},
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    done = steptime("explain", "trace.json", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("A step takes 100 us; 80% of it is matrix products")
