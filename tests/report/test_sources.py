from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steptime.cli import make_app
from steptime.errors import SteptimeError
from steptime.ledger import Ledger, RunRow
from steptime.report import read_records, render_report

DATA = Path(__file__).parent / "data"
EXPLANATION, AFTER, TUNE = (str(DATA / f"{name}.json") for name in ("explanation", "after", "tune"))


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    with Ledger.open() as opened:
        yield opened


def test_files_are_told_apart_by_what_is_in_them(explanation, tuning, after):
    found = read_records([TUNE, EXPLANATION, AFTER])
    assert (found.explanation, found.tuning, found.after) == (explanation, tuning, after)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not JSON"), ("[1]", "is neither an explanation"), ('{"a": 1}', "is neither an explanation")],
)
def test_other_files_are_refused_by_name(tmp_path, content, message):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(SteptimeError, match=rf"x\.json: {message}"):
        read_records([str(path)])


def test_a_missing_file_is_not_taken_for_a_run():
    with pytest.raises(SteptimeError, match=r"gone\.json: cannot be read"):
        read_records(["gone.json"])


def test_more_than_a_report_can_show_is_refused():
    with pytest.raises(SteptimeError, match="at most one tune result and two explanations"):
        read_records([TUNE, TUNE])


def test_an_explained_run_comes_from_the_ledger_with_its_provenance(ledger, explanation):
    run = ledger.add_run(RunRow(kind="explain", command=["python", "train.py"], cwd="/home/a", status="finished"))
    ledger.write_explanation(run, explanation)
    found = read_records([run[:6]])
    assert found.explanation == explanation
    assert found.tuning is None
    page = render_report(found.explanation, found.tuning, found.provenance)
    assert "python train.py" in page
    assert run in page


def test_a_tuned_run_without_a_result_shows_what_was_predicted_and_decided(ledger):
    run = ledger.add_run(RunRow(kind="tune", command=["python", "train.py"], cwd="/home/a", step_s=0.04))
    kept = ledger.add_prediction(run, "dropout", 0.012, 0.011, 0.013, "random ops minus a measured mask")
    ledger.settle_prediction(kept, 0.0115, 0.011, 0.012)
    ledger.add_prediction(run, "compile", 0.002, 0.0, 0.004, "chains")
    ledger.add_verdict(run, "dropout", decision="kept", why="8 of 8 pairs faster", prediction_id=kept)
    first, second = read_records([run]).tuning["remedies"]
    assert (first["verdict"], first["measured_s"]) == ("kept", 0.0115)
    assert (second["verdict"], second["measured_s"]) == ("no verdict", None)


def test_a_tuned_run_brings_its_own_result_when_it_was_kept(ledger, tmp_path, tuning):
    run = ledger.add_run(RunRow(kind="tune", command=["python", "train.py"], cwd="/home/a"))
    path = tmp_path / "result.json"
    path.write_text(json.dumps(tuning))
    ledger.add_artefact(run, "tune", path)
    assert read_records([run]).tuning == tuning


def test_a_run_with_nothing_to_show_says_what_it_is(ledger):
    run = ledger.add_run(RunRow(kind="run", command=["python", "train.py"], cwd="/home/a", status="failed"))
    with pytest.raises(SteptimeError, match="holds neither an explanation nor a tune result"):
        read_records([run])


def test_the_command_writes_the_file_it_names(tmp_path):
    out = tmp_path / "r.html"
    result = CliRunner().invoke(make_app(), ["report", EXPLANATION, TUNE, "--out", str(out)])
    assert result.exit_code == 0
    assert "wrote" in result.stderr
    assert result.stdout == ""
    assert out.read_text().startswith("<!doctype html>")
