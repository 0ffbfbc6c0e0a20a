import json
import multiprocessing
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from steptime.errors import SteptimeError
from steptime.ledger import DECISIONS, Ledger, RunRow, collect, compare, is_lost


def a_run(**known):
    return RunRow(**{"kind": "run", "command": ["python", "train.py"], "cwd": "/home/anna", **known})


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.db") as opened:
        yield opened


def test_a_run_comes_back_as_it_was_written_also_after_reopening(ledger, tmp_path):
    plan = {"kernels": {"dropout": "parallel"}, "process": {"threads": 2}}
    run_id = ledger.add_run(
        a_run(plan=plan, git={"commit": "abc", "dirty": True}, hardware="cpu-2", seeds={"torch": 1})
    )
    ledger.finish_run(run_id, status="finished", exit_code=0, step_s=0.2, step_low_s=0.19, step_high_s=0.22)
    with Ledger.open(tmp_path / "ledger.db") as again:
        run = again.run(run_id)
    assert (run.plan, run.git, run.hardware, run.seeds) == (
        plan,
        {"commit": "abc", "dirty": True},
        "cpu-2",
        {"torch": 1},
    )
    assert (run.status, run.exit_code, run.step_s, run.step_low_s, run.step_high_s) == ("finished", 0, 0.2, 0.19, 0.22)
    assert json.loads(json.dumps(run.to_json()))["command"] == ["python", "train.py"]


def test_times_are_utc(ledger):
    start = datetime.now(UTC)
    run = ledger.run(ledger.add_run(a_run()))
    assert run.created.utcoffset() == timedelta(0)
    assert start <= run.created <= datetime.now(UTC)
    elsewhere = datetime.fromisoformat("2026-01-01T00:30:00+02:00")
    assert ledger.run(ledger.add_run(a_run(created=elsewhere))).created == elsewhere


def test_a_time_without_a_zone_is_refused(ledger):
    with pytest.raises(Exception, match="without a zone"):
        ledger.add_run(a_run(created=datetime(2026, 1, 1)))
    assert ledger.runs() == []


def test_a_run_is_found_by_a_short_prefix_when_it_is_the_only_one(ledger):
    for name in ("abc111", "abc222", "abd333", "abc"):
        ledger.add_run(a_run(id=name))
    assert ledger.run("abd").id == "abd333"
    assert ledger.run("abc").id == "abc"  # the whole id wins over longer ones
    with pytest.raises(SteptimeError, match=r"several runs begin so.*give more of the id"):
        ledger.run("ab")
    with pytest.raises(SteptimeError, match="no run has this id"):
        ledger.run("a%")


def test_runs_are_listed_newest_first(ledger):
    start = datetime(2026, 1, 1, tzinfo=UTC)
    tune = ledger.add_run(a_run(kind="tune", created=start))
    trials = [
        ledger.add_run(a_run(kind="trial", parent=tune, created=start + timedelta(seconds=at))) for at in (1, 2, 3)
    ]
    assert [run.id for run in ledger.runs()] == [*reversed(trials), tune]
    assert [run.id for run in ledger.runs(limit=2)] == [trials[2], trials[1]]
    assert [run.id for run in ledger.runs(kind="tune")] == [tune]
    with pytest.raises(SteptimeError, match="no kind 'holiday'; one of explain"):
        ledger.runs(kind="holiday")


@pytest.mark.parametrize("wrong", [{"kind": "holiday"}, {"status": "tired"}, {"parent": "nobody"}])
def test_values_outside_the_schema_are_refused(ledger, wrong):
    with pytest.raises(SteptimeError, match="constraint failed"):
        ledger.add_run(a_run(**wrong))
    assert ledger.runs() == []


def test_a_prediction_is_there_before_its_measurement_and_settled_once(ledger, tmp_path):
    run_id = ledger.add_run(a_run(kind="tune"))
    key = ledger.add_prediction(run_id, "dropout", predicted_s=0.20, low_s=0.15, high_s=0.30, basis="measured kernel")
    with Ledger.open(tmp_path / "ledger.db") as other:
        (before,) = other.predictions(run_id)
    assert (before.measured_s, before.settled) == (None, None)
    ledger.settle_prediction(key, measured_s=0.25, low_s=0.24, high_s=0.26)
    (after,) = ledger.predictions()
    assert (after.measured_s, after.measured_low_s, after.measured_high_s) == (0.25, 0.24, 0.26)
    assert after.created <= after.settled
    with pytest.raises(SteptimeError, match="settled already"):
        ledger.settle_prediction(key, measured_s=0.20, low_s=0.2, high_s=0.2)
    assert ledger.predictions()[0].measured_s == 0.25


def test_a_prediction_outside_its_interval_or_run_is_refused(ledger):
    run_id = ledger.add_run(a_run(kind="tune"))
    with pytest.raises(SteptimeError, match="does not hold the prediction"):
        ledger.add_prediction(run_id, "x", predicted_s=2.0, low_s=0.0, high_s=1.0, basis="")
    with pytest.raises(SteptimeError, match="constraint failed"):
        ledger.add_prediction("nobody", "x", predicted_s=1.0, low_s=1.0, high_s=1.0, basis="")
    with pytest.raises(SteptimeError, match="no prediction has the id 'nobody'"):
        ledger.settle_prediction("nobody", measured_s=1.0, low_s=1.0, high_s=1.0)


def test_verdicts_carry_their_numbers(ledger):
    run_id = ledger.add_run(a_run(kind="tune"))
    for decision in DECISIONS:
        ledger.add_verdict(
            run_id, "bf16", decision=decision, why="because", speed_ratio=1.2, speed_low=1.1, speed_high=1.3,
            blocks=8, alpha=0.01, quality={"verdict": "equivalent", "margin": 0.5},
        )  # fmt: skip
    verdicts = ledger.verdicts(run_id)
    assert [verdict.decision for verdict in verdicts] == list(DECISIONS)
    assert (verdicts[0].speed_low, verdicts[0].blocks, verdicts[0].alpha) == (1.1, 8, 0.01)
    assert verdicts[0].quality == {"verdict": "equivalent", "margin": 0.5}
    with pytest.raises(SteptimeError, match="'accepted' is none of kept"):
        ledger.add_verdict(run_id, "bf16", decision="accepted", why="")


def test_probes_of_a_machine_newest_first(ledger):
    for fingerprint, n in (("a", 1), ("b", 2), ("a", 3)):
        ledger.add_probe({"fingerprint": fingerprint, "device": "cpu", "quiet": n > 1, "n": n})
    assert [probe.calibration["n"] for probe in ledger.probes("a")] == [3, 1]
    assert [probe.quiet for probe in ledger.probes("a")] == [True, False]


def test_an_explanation_and_columns_lie_beside_the_ledger_and_are_noted(ledger, tmp_path):
    run_id = ledger.add_run(a_run())
    assert ledger.explanation(run_id) is None
    ledger.write_explanation(run_id, {"step": {"median_ns": 5}})
    ledger.write_columns(run_id, rank=1, pid=9, series={"step_ns": [1, 2, 3]})
    assert ledger.explanation(run_id[:6]) == {"step": {"median_ns": 5}}
    assert ledger.columns(run_id).processes[0].series["step_ns"].tolist() == [1, 2, 3]
    paths = {artefact.kind: (artefact.path, artefact.rows) for artefact in ledger.artefacts(run_id)}
    assert paths == {
        "explanation": (f"records/{run_id}/explanation.json", None),
        "columns": (f"columns/{run_id}/1-9.parquet", 3),
    }
    (tmp_path / "records" / run_id / "explanation.json").write_text("{")
    with pytest.raises(SteptimeError, match="unreadable"):
        ledger.explanation(run_id)


def test_compare_says_how_much_faster_and_what_differed(ledger):
    shared = {"environment": {"A": "1"}, "torch": "2.13.0", "packages": {"numpy": "2.3", "torch": "2.13.0"}}
    a = ledger.add_run(a_run(**shared, step_s=0.4, step_low_s=0.36, step_high_s=0.44))
    b = ledger.add_run(
        a_run(
            **{**shared, "packages": {"numpy": "2.4", "torch": "2.13.0", "x": "1"}},
            plan={"precision": {"autocast": "bf16"}},
            step_s=0.2, step_low_s=0.18, step_high_s=0.22,
        )
    )  # fmt: skip
    found = compare(ledger, a, b)
    assert found.speedup == pytest.approx(2.0)
    assert (found.speedup_low, found.speedup_high) == (pytest.approx(0.36 / 0.22), pytest.approx(0.44 / 0.18))
    assert {d.name: (d.a, d.b) for d in found.differences} == {
        "packages.numpy": ("2.3", "2.4"),
        "packages.x": (None, "1"),
        "plan": (None, {"precision": {"autocast": "bf16"}}),
    }
    assert json.dumps(found.to_json())
    assert compare(ledger, a, ledger.add_run(a_run())).speedup is None


@pytest.mark.spawned
def test_a_run_whose_process_was_killed_is_told_from_one_that_runs():
    alive = a_run(host=collect(["x"], "/")["host"])
    gone = subprocess.Popen(["true"])
    gone.wait()
    lost = a_run(host={**alive.host, "pid": gone.pid})
    assert (is_lost(lost), is_lost(alive)) == (True, False)
    # the same process id, taken by a later process
    reused = a_run(host={**alive.host, "pid_started": alive.host["pid_started"] - 3600})
    elsewhere = a_run(host={**lost.host, "name": "another"})
    ended = a_run(host=lost.host, status="failed")
    assert [is_lost(run) for run in (reused, elsewhere, ended, a_run())] == [True, False, False, False]


@pytest.mark.spawned
def test_a_prediction_outlives_the_process_that_is_killed_right_after_it(tmp_path):
    code = f"""
import os, signal
from steptime.ledger import Ledger, RunRow
ledger = Ledger.open({str(tmp_path / "ledger.db")!r})
run = ledger.add_run(RunRow(kind="tune", command=["x"], cwd="/"))
ledger.add_prediction(run, "dropout", 0.2, 0.1, 0.3, "kernel")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert [(row.remedy, row.predicted_s) for row in ledger.predictions()] == [("dropout", 0.2)]


def _append(path, start, count):
    start.wait(30)
    with Ledger.open(path) as ledger:  # all four also race to make the ledger
        for at in range(count):
            run_id = ledger.add_run(a_run(cwd=f"{multiprocessing.current_process().name}-{at}"))
            ledger.finish_run(run_id, status="finished", exit_code=0)


@pytest.mark.spawned
def test_four_processes_that_append_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    start = context.Event()
    path = tmp_path / "ledger.db"
    workers = [context.Process(target=_append, args=(path, start, 10), name=f"w{at}") for at in range(4)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    with Ledger.open(path) as ledger:
        assert {run.cwd for run in ledger.runs()} == {f"w{w}-{at}" for w in range(4) for at in range(10)}
        assert {run.status for run in ledger.runs()} == {"finished"}


def test_the_public_names():
    import steptime.ledger

    assert set(steptime.ledger.__all__) == {
        "DECISIONS", "RUN_KINDS", "RUN_STATUSES", "ArtefactRow", "Columns", "Difference", "Ledger", "PredictionRow",
        "ProbeRow", "ProcessColumns", "RunComparison", "RunRow", "VerdictRow", "check_writable", "collect", "compare",
        "is_lost",
        "steptime_home",
        "write_whole",
    }  # fmt: skip
