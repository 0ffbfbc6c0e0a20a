import hashlib
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.ledger.provenance import WITHHELD, collect, git_state, public_command, public_environment


def git(folder, *arguments):
    options = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=trunk"]
    done = subprocess.run(["git", *options, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("print(1)\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_a_clean_repository(repository):
    assert git_state(repository) == {
        "root": str(repository.resolve()),
        "commit": git(repository, "rev-parse", "HEAD"),
        "branch": "trunk",
        "dirty": False,
        "diff_sha256": None,
    }


def test_the_digest_of_a_tracked_change_is_that_of_gits_own_diff(repository):
    (repository / "train.py").write_text("print(2)\n")
    diff = subprocess.run(["git", "diff", "--binary", "HEAD"], cwd=repository, capture_output=True, check=True).stdout
    state = git_state(repository)
    assert state is not None
    assert state["dirty"]
    assert state["diff_sha256"] == hashlib.sha256(diff).hexdigest()


def test_an_untracked_file_changes_the_digest_and_an_ignored_one_does_not(repository):
    (repository / "model.py").write_text("a")
    first = git_state(repository)["diff_sha256"]
    (repository / "model.py").write_text("b")
    assert git_state(repository)["diff_sha256"] != first
    (repository / ".git" / "info" / "exclude").write_text("model.py\n")
    assert git_state(repository)["dirty"] is False


def test_before_the_first_commit_detached_and_outside(tmp_path, repository):
    git(repository, "checkout", "-q", "--detach")
    assert git_state(repository)["branch"] is None
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    git(fresh, "init", "-q")
    assert git_state(fresh)["commit"] is None
    outside = tmp_path / "outside"
    outside.mkdir()
    assert git_state(outside) is None
    assert git_state(tmp_path / "missing") is None


def test_the_look_runs_no_program_that_the_repository_names(repository, tmp_path):
    trap = tmp_path / "trap"
    program = tmp_path / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {trap}\n")
    program.chmod(0o755)
    for name in ("diff.external", "core.fsmonitor", "diff.py.textconv"):
        git(repository, "config", name, str(program))
    (repository / ".gitattributes").write_text("*.py diff=py\n")
    (repository / "train.py").write_text("print(3)\n")
    assert git_state(repository)["dirty"]
    assert not trap.exists()


def test_git_missing_is_not_an_error(repository, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert git_state(repository) is None


@pytest.mark.parametrize(
    "name",
    ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "db_password", "WANDB_API_KEY", "SSH_AUTH_SOCK", "MY_CREDENTIALS", "DB_PWD"],
)
def test_secrets_are_withheld_by_name(name):
    assert public_environment({name: "hunter2"}) == {name: WITHHELD}


def test_secrets_are_withheld_by_shape_and_in_urls():
    shown = public_environment(
        {
            "A": "ghp_" + "a1B2" * 9,
            "DATABASE_URL": "postgresql+psycopg://anna:hunter2@db.example.org:5432/q?sslmode=require",
            "HTTP_PROXY": "http://:hunter2@proxy:3128",
            "SLASH": "mysql://anna:hun/ter2@db/q",
            "AT": "mysql://anna:hunter2@x@db/q",
            "CONFIG": '{"api_key": "hunter2"}',
            "TOKENIZERS_PARALLELISM": "false",
            "PLAIN": "https://example.org:8080/a@b",
            "OMP_NUM_THREADS": "2",
            "PWD": "/home/anna",
        }
    )
    assert shown["A"] == WITHHELD
    assert shown["DATABASE_URL"] == f"postgresql+psycopg://anna:{WITHHELD}@db.example.org:5432/q?sslmode=require"
    assert shown["SLASH"] == f"mysql://anna:{WITHHELD}@db/q"
    assert shown["AT"] == f"mysql://anna:{WITHHELD}@db/q"
    assert shown["TOKENIZERS_PARALLELISM"] == "false"
    assert "hunter2" not in json.dumps(shown)
    assert (shown["PLAIN"], shown["OMP_NUM_THREADS"]) == ("https://example.org:8080/a@b", "2")
    assert shown["PWD"] == "/home/anna"


PARTS = st.text(alphabet="abcXYZ019%+-._~!$", min_size=1, max_size=12)


@given(
    user=PARTS, password=PARTS.map(lambda part: f"hun{part}ter"), host=PARTS, path=st.sampled_from(["", "/", "/a@b"])
)
def test_no_url_keeps_its_password(user, password, host, path):
    text = f"see postgresql://{user}:{password}@{host}{path} and https://:{password}@{host}"
    assert password not in public_environment({"A": text})["A"]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["python", "train.py", "--lr", "0.1"], ["python", "train.py", "--lr", "0.1"]),
        (["x", "--api-key", "s3", "--epochs", "2"], ["x", "--api-key", WITHHELD, "--epochs", "2"]),
        (["x", "--token=s3=4"], ["x", f"--token={WITHHELD}"]),
        (["env", "HF_TOKEN=s3", "python"], ["env", f"HF_TOKEN={WITHHELD}", "python"]),
        (["x", "--use-auth", "--lr", "1"], ["x", "--use-auth", "--lr", "1"]),
        (["python", "keys/tokenizer.py", "key=1"], ["python", "keys/tokenizer.py", f"key={WITHHELD}"]),
        (["x", "wandb.api_key=s3", "+a.token=s3"], ["x", f"wandb.api_key={WITHHELD}", f"+a.token={WITHHELD}"]),
        (
            ["x", "--max-tokens=512", "--tokenizer", "gpt2", "--key-dim", "64"],
            ["x", "--max-tokens=512", "--tokenizer", "gpt2", "--key-dim", "64"],
        ),
        (["x", "s3://b/k?X-Amz-Signature=abc&part=1"], ["x", f"s3://b/k?X-Amz-Signature={WITHHELD}&part=1"]),
    ],
)
def test_secrets_on_the_command_line_are_withheld(command, shown):
    assert public_command(command) == shown


def test_collect_finds_the_code_of_the_script_not_of_the_folder_it_runs_in(repository, tmp_path):
    found = collect(["python", "code/train.py"], tmp_path, environment={"A_KEY": "x"})
    assert found["git"]["root"] == str(repository.resolve())
    assert found["environment"] == {"A_KEY": WITHHELD}
    assert found["packages"]["numpy"] == __import__("numpy").__version__
    assert json.loads(json.dumps(found)) == found


@pytest.mark.spawned
def test_the_packages_of_another_interpreter(tmp_path):
    found = collect(["x"], tmp_path, python=sys.executable, environment={})
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "pytest" in found["packages"]
    absent = collect(["x"], tmp_path, python="/nowhere/python", environment={})
    assert (absent["python"], absent["packages"], absent["torch"]) == (None, {}, None)
