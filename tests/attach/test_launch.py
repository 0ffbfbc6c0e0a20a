"""Bad input, each a line; the installed fallback; exit codes."""

import json
import os
import subprocess
import sys

import pytest

import steptime.attach as attach
from steptime.attach import SessionSpec, launch, read_session, write_session
from steptime.attach.pth import install_pth, remove_pth
from steptime.errors import SteptimeError


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ([], "no command was given"),
        (["no-such-program"], "no-such-program: the program is not found"),
        ([sys.executable, "absent.py"], "absent.py: the script is not there"),
    ],
)
def test_commands_that_cannot_start_leave_nothing(tmp_path, command, told):
    with pytest.raises(SteptimeError, match=told):
        launch(command, SessionSpec(), folder=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_used_folder_is_refused(tmp_path):
    write_session(SessionSpec(), tmp_path / "s")
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
    with pytest.raises(SteptimeError, match="already run"):
        write_session(SessionSpec(), tmp_path / "s")


def test_an_unwritable_folder_is_a_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SteptimeError, match="cannot be written"):
        write_session(SessionSpec(), tmp_path / "file" / "s")


def test_not_a_session(tmp_path):
    with pytest.raises(SteptimeError, match="not a session folder"):
        read_session(tmp_path)


def test_broken_lines_are_counted_not_hidden(tmp_path):
    write_session(SessionSpec(), tmp_path / "s")
    rank = tmp_path / "s" / "ranks" / "0-1"
    rank.mkdir()
    (rank / "process.json").write_text(json.dumps({"rank": 0, "world_size": 1, "pid": 1}))
    lines = ['{"event": "losses", "first_step": 0, "steps": 1, "values": {"f:1": [2.0]}}', '{"event": "end", "se']
    (rank / "events.jsonl").write_text("\n".join(lines))
    (tmp_path / "s" / "ranks" / "1-2").mkdir()
    record = read_session(tmp_path / "s")
    assert [r.rank for r in record.ranks] == [0]
    assert record.dropped == [
        "0-1: 1 of 2 lines of events.jsonl are broken",
        "1-2: process.json is unreadable; the rank is left out",
    ]


@pytest.mark.spawned
@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(5)", 5), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_exit_codes_are_a_shells(tmp_path, program, code):
    assert launch([sys.executable, "-c", program], SessionSpec(), folder=tmp_path / "s").wait() == code


@pytest.mark.spawned
def test_pth_arms_only_in_a_session(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
    python = str(tmp_path / "env" / "bin" / "python")
    write_session(SessionSpec(), tmp_path / "s")
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    session = {**bare, "STEPTIME_SESSION": str(tmp_path / "s")}

    def armed(environment: dict[str, str]) -> str:
        command = [python, "-I", "-c", "import sys; print('steptime.agent.arm' in sys.modules)"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    path = install_pth(python)
    assert path.is_relative_to(tmp_path)
    assert (armed(session), armed(bare)) == ("True", "False")
    assert remove_pth(python)
    assert armed(session) == "False"
    assert not remove_pth(python)


def test_exported_members():
    names = (
        "Frame GateServer Launch RankRecord RunningJob RunningProcess SessionRecord SessionSpec StepTable Unattached "
        "WindowSpec agent_environment launch look_at read_session trace_on_demand write_session"
    )
    assert sorted(attach.__all__) == sorted(names.split(" "))
