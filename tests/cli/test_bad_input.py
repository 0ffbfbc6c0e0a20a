"""What a user may get wrong, and what a machine may refuse: one clear line, the right exit code, nothing half-done."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.spawned

SOURCE = Path(__file__).resolve().parents[2] / "src"
PYTHON = sys.executable
TRAIN = """
import sys, time
import torch
weight = torch.nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(int(sys.argv[1])):
    (weight ** 2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.001)
    if step == 60:
        print("sixty", flush=True)
"""
UNUSABLE = "/proc/steptime-nowhere"
"""A folder that not even root can make."""


@pytest.fixture
def steptime(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`steptime(*words, home=, file_bytes=)` in a folder that holds train.py."""
    (tmp_path / "train.py").write_text(TRAIN)

    def run(*words: str, home: str = "", file_bytes: int = 0) -> subprocess.CompletedProcess[str]:
        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

        return subprocess.run(
            [PYTHON, "-m", "steptime.cli", *words],
            cwd=tmp_path,
            env=environment(tmp_path, home),
            capture_output=True,
            text=True,
            timeout=200,
            preexec_fn=limited if file_bytes else None,
        )

    return run


def environment(folder: Path, home: str = "") -> dict[str, str]:
    ours = {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "STEPTIME_HOME": home or str(folder / "home")}
    return {**os.environ, **ours}


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("steptime: ")
    return line


@pytest.mark.parametrize("command", ["explain", "tune", "run"])
@pytest.mark.parametrize(
    ("script", "says"),
    [
        ((PYTHON, "nosuch.py"), "nosuch.py: the script is not there"),
        (("nosuchcommand",), "nosuchcommand: the program is not found or not executable"),
    ],
)
def test_a_script_that_is_not_there(steptime, tmp_path, command, script, says):
    (tmp_path / "empty.toml").write_text("version = 1\n")
    words = ("run", "--plan", "empty.toml") if command == "run" else (command,)
    assert one_line(steptime(*words, "--", *script)) == f"steptime: {says}"
    assert not (tmp_path / "plan.toml").exists()
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("words", [("explain",), ("tune",), ("run", "--plan", "empty.toml")])
def test_nothing_behind_the_dashes(steptime, tmp_path, words):
    (tmp_path / "empty.toml").write_text("version = 1\n")
    assert "-- python train.py" in one_line(steptime(*words, "--"))


def test_a_failing_import_is_the_scripts_own(steptime, tmp_path):
    (tmp_path / "broken.py").write_text("import torch\nimport nosuchmodule\n")
    done = steptime("explain", "--", PYTHON, "broken.py")
    assert done.returncode == 1
    *theirs, ours = done.stderr.splitlines()
    assert theirs[0] == "Traceback (most recent call last):"
    assert theirs[-1] == "ModuleNotFoundError: No module named 'nosuchmodule'"
    assert "steptime" not in "".join(theirs)
    assert ours.startswith("steptime: no training step was found")


def test_a_script_without_a_step_says_what_was_seen(steptime, tmp_path):
    (tmp_path / "idle.py").write_text("import torch, time\ntime.sleep(1)\n")
    line = one_line(steptime("explain", "--", PYTHON, "idle.py"))
    assert "no training step was found: 1 processes used torch, none made an optimizer step" in line


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"traceEvents": [{"ph": "X", "na', "not a readable Kineto trace"),
        (b'{"traceEvents": 3}', "not a readable Kineto trace"),
        (b"\x1f\x8b\x08 not gzip", "trace.json"),
        (b"", "trace.json"),
    ],
)
def test_an_unreadable_trace(steptime, tmp_path, content, says):
    (tmp_path / "trace.json").write_bytes(content)
    line = one_line(steptime("explain", "trace.json"))
    assert line.startswith("steptime: trace.json: ")
    assert says in line


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("version = 2\n", "version is 2; this steptime reads version 1; upgrade steptime"),
        ('version = 1\n[precision]\nautocasts = "bf16"\n', "did you mean autocast?"),
        ("version = 1\n[precision\n", "plan.toml"),
    ],
)
def test_a_plan_that_cannot_be_read(steptime, tmp_path, plan, says):
    (tmp_path / "plan.toml").write_text(plan)
    assert says in one_line(steptime("run", "--plan", "plan.toml", "--", PYTHON, "train.py", "3"))


@pytest.mark.parametrize("option", ["--only", "--skip"])
def test_an_unknown_remedy_is_told_before_anything_runs(steptime, tmp_path, option):
    line = one_line(steptime("tune", option, "magic", "--", PYTHON, "train.py", "3"))
    assert line.startswith("steptime: --only/--skip: there is no remedy magic; one of ")
    assert "fused_optimizer" in line


def test_a_file_that_is_no_remedy(steptime, tmp_path):
    (tmp_path / "mine.py").write_text("print('hello')\n")
    (tmp_path / "empty.toml").write_text("version = 1\n")
    for words in (("tune",), ("run", "--plan", "empty.toml")):
        line = one_line(steptime(*words, "--remedies", "mine.py", "--", PYTHON, "train.py", "3"))
        assert "defines no function apply(report)" in line


def test_a_ledger_of_a_newer_version_is_left_alone(steptime, tmp_path):
    assert steptime("runs").returncode == 0
    ledger = tmp_path / "home" / "ledger.db"
    with sqlite3.connect(ledger) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    before = ledger.read_bytes()
    for words in (("runs",), ("tune", "--", PYTHON, "train.py", "3")):
        assert "was written by a newer steptime (schema 9999" in one_line(steptime(*words))
    assert ledger.read_bytes() == before


@pytest.mark.parametrize(
    "words",
    [
        ("tune", "--plan-out", f"{UNUSABLE}/plan.toml"),
        ("tune", "--plan-out", "."),
        ("explain", "--out", UNUSABLE),
        ("explain", "--report", f"{UNUSABLE}/report.html"),
    ],
)
def test_an_unusable_place_is_told_before_anything_runs(steptime, words):
    assert words[-1] in one_line(steptime(*words, "--", PYTHON, "train.py", "3"))


def test_an_unusable_home(steptime):
    for words in (("runs",), ("tune", "--", PYTHON, "train.py", "3")):
        assert UNUSABLE in one_line(steptime(*words, home=UNUSABLE))
    # the explanation needs no ledger: it is given, and the loss is told
    done = steptime("explain", "--", PYTHON, "train.py", "30", home=UNUSABLE)
    assert done.returncode == 0
    assert "Step time:" in done.stderr
    assert UNUSABLE in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_named_and_the_script_goes_on(steptime, tmp_path):
    done = steptime("explain", "--out", "session", "--", PYTHON, "train.py", "70", file_bytes=100_000)
    assert (done.returncode, done.stdout) == (2, "sixty\n")
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "session" / "explanation.json").exists()
    assert not list(tmp_path.rglob("*.tmp"))


def test_ctrl_c_keeps_what_was_measured(steptime, tmp_path):
    running = subprocess.Popen(
        [PYTHON, "-m", "steptime.cli", "explain", "--", PYTHON, "train.py", "1000000"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "sixty\n"
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=120)
    finally:
        running.kill()
    # Python ends on Ctrl-C by the signal itself, with its traceback
    assert running.returncode == 130
    assert told.count("Traceback") == 1
    assert "KeyboardInterrupt" in told
    assert "Step time:" in told or "A step takes" in told


def test_an_isolated_python_is_named_with_both_ways_out(steptime, tmp_path):
    (tmp_path / "quiet.py").write_text(TRAIN.replace("step == 60", "False"))
    line = one_line(steptime("explain", "--", PYTHON, "-I", "quiet.py", "2000"))
    assert "python -I (isolated)" in line
    assert "import steptime.agent.here" in line
    assert "steptime attach --install-pth" in line
