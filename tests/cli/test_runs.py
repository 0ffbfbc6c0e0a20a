import json

import pytest
from typer.testing import CliRunner

from steptime.cli import make_app
from steptime.errors import SteptimeError
from steptime.ledger import Ledger, RunRow


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    monkeypatch.delenv("STEPTIME_LEDGER", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    with Ledger.open() as ledger:
        first = ledger.add_run(RunRow(id="aaaa11112222", kind="tune", command=["python", "[x].py"], cwd="/c"))
        guess = ledger.add_prediction(first, "dropout", predicted_s=0.2, low_s=0.1, high_s=0.3, basis="kernel")
        ledger.settle_prediction(guess, measured_s=0.25, low_s=0.2, high_s=0.3)
        ledger.add_verdict(first, "dropout", decision="kept", why="faster", speed_ratio=2.0, speed_low=1.9,
                           speed_high=2.1, prediction_id=guess)  # fmt: skip
        ledger.finish_run(first, status="finished", exit_code=0, step_s=0.4, step_low_s=0.39, step_high_s=0.41)
        second = ledger.add_run(RunRow(id="bbbb11112222", kind="run", command=["python", "[x].py"], cwd="/c"))
        ledger.finish_run(second, status="failed", exit_code=3, step_s=0.2, step_low_s=0.19, step_high_s=0.21)


def invoke(*arguments):
    result = CliRunner().invoke(make_app(), ["runs", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_list(two_runs):
    table = invoke()
    assert table.index("bbbb1111") < table.index("aaaa1111")
    assert "failed (3)" in table
    assert "400 ms (390 .. 410)" in table
    assert "[x].py" in table
    assert [run["id"] for run in json.loads(invoke("--json", "--limit", "1"))] == ["bbbb11112222"]
    assert [run["id"] for run in json.loads(invoke("--json", "--kind", "tune"))] == ["aaaa11112222"]


def test_show_holds_predicted_against_measured(two_runs):
    page = invoke("show", "aa")
    assert all(part in page for part in ("aaaa11112222", "dropout", "200 ms (100 .. 300)", "250", "2.00x", "kept"))
    shown = json.loads(invoke("show", "aa", "--json"))
    assert shown["predictions"][0]["measured_s"] == 0.25
    assert shown["verdicts"][0]["decision"] == "kept"


def test_compare(two_runs):
    page = invoke("compare", "a", "b")
    assert "2.00x (1.86 .. 2.16)" in page  # 0.4/0.2, 0.39/0.21, 0.41/0.19
    assert json.loads(invoke("compare", "a", "b", "--json"))["differences"] == [
        {"name": "kind", "a": "tune", "b": "run"}
    ]


def test_an_empty_ledger_and_an_unknown_run(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    monkeypatch.delenv("STEPTIME_LEDGER", raising=False)
    assert "no runs yet" in invoke()
    assert json.loads(invoke("--json")) == []
    with pytest.raises(SteptimeError, match="no run has this id"):
        invoke("show", "ffff")
