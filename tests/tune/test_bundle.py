"""Gains that are too small to be proved alone, on a synthetic script whose truth is known."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from scripted import MS, Script, explanation, gap, op

from steptime.explain.remedies import Micro, Prediction, Proposal, Remedy
from steptime.tune import NoBooks, TuneSettings, tune
from steptime.tune.bundle import small_ones

SMALL = explanation(
    [
        op("aten::mm", 90, group="matmul", shapes=((3200, 64), (64, 64)), calls=0.0),
        op("aten::zero_", 1.2, group="optimizer", phase="optimizer", shapes=((64, 64),)),
    ],
    [gap("data", 1.5), gap("garbage_collection", 1.5, phase="other")],
)
MEMBERS = {"prefetch_thread", "zero_grad_set_to_none", "gc_freeze"}
GAINS = {"data.prefetch_thread": 0.985, "optimizer.zero_grad": 0.987, "process.gc": 0.985}


class Books(NoBooks):
    def __init__(self):
        self.predictions = {}

    def predicted(self, proposal):
        self.predictions[proposal.remedy.name] = proposal.prediction
        return proposal.remedy.name


def run(script, books=None, **settings):
    result = tune(
        script,
        TuneSettings(**{"budget_s": 600.0, **settings}),
        books or NoBooks(),
        clock=script.clock,
        measure_micro=lambda evidence: Micro(results={'{"kind": "compiler"}': {"unavailable": "no compiler"}}),
    )
    return result, {remedy.name: remedy for remedy in result.remedies}


def test_small_gains_are_tried_as_one_and_kept_when_they_are_there():
    result, found = run(Script(explanation=SMALL, gains=GAINS, noise=0.004))
    bundle = found["small_gains"]
    assert bundle.verdict == "kept"
    assert set(result.setup.plan.difference()) >= {"data.prefetch_thread", "optimizer.zero_grad", "process.gc"}
    truth = 0.985 * 0.987 * 0.985
    gain = result.confirmation.gain
    assert gain.low < 1 / truth < gain.high
    assert [remedy.name for remedy in result.kept] == ["small_gains"]


def test_its_prediction_is_the_sum_and_is_written_before_the_trial():
    books = Books()
    _, found = run(Script(explanation=SMALL, gains=GAINS, noise=0.004), books)
    members = [found[name].proposal.prediction.saved_s for name in MEMBERS]
    prediction = books.predictions["small_gains"]
    # written for the step as it is before the trial, which blocks of 0.4 % noise measure
    assert prediction.saved_s == pytest.approx(sum(members), rel=0.01)
    assert prediction.low_s < prediction.saved_s < prediction.high_s
    # independent errors: the joint interval is narrower than the sum of the intervals
    assert prediction.high_s < sum(found[name].proposal.prediction.high_s for name in MEMBERS)


def test_every_member_says_what_it_is_part_of():
    _, found = run(Script(explanation=SMALL, gains=GAINS, noise=0.004))
    for name in MEMBERS:
        assert found[name].verdict == "not tried"
        assert found[name].why.startswith("part of small_gains")
        assert name in found["small_gains"].proposal.remedy.why


def test_small_gains_that_are_not_there_are_not_kept():
    kept = sum(bool(run(Script(explanation=SMALL, noise=0.01, seed=seed))[0].kept) for seed in range(20))
    assert kept <= 1


def test_what_skip_names_is_no_member():
    _, found = run(Script(explanation=SMALL, gains=GAINS, noise=0.004), skip=("gc_freeze",))
    assert "small_gains" not in found or "gc_freeze" not in found["small_gains"].proposal.remedy.why


def test_a_bundle_below_three_per_cent_is_not_tried():
    tiny = explanation(
        [op("aten::mm", 98, group="matmul", shapes=((3200, 64), (64, 64)), calls=0.0)],
        [gap("data", 1.0), gap("garbage_collection", 0.8, phase="other")],
    )
    assert "small_gains" not in run(Script(explanation=tiny, noise=0.004))[1]


def test_two_that_hide_the_same_wait_count_once():
    # thread and workers both take the loader off the critical path
    _, found = run(Script(explanation=SMALL, gains=GAINS, noise=0.004))
    assert "loader_workers" not in found["small_gains"].proposal.remedy.why
    assert found["small_gains"].proposal.prediction.saved_s < 4.2 * MS / 1e9


def test_the_tuned_step_is_explained_when_time_is_left_only():
    script = Script(explanation=SMALL, gains=GAINS, noise=0.004)
    result, _ = run(script)
    assert result.to_json()["explanation_after"]["step"]["median_ns"] == SMALL.step.median_ns
    assert result.to_json()["explanation"]["step"]["n"] == SMALL.step.n
    short, _ = run(replace(script, now=0.0), budget_s=script.now - 8)
    assert short.explanation_after is None


def test_remedies_of_a_few_percent_are_not_tried_alone() -> None:
    # 100 ms a step: 30 ms is tried alone; 5 and 4 ms surely, together; 6 ms that may be a loss, alone
    evidence = SimpleNamespace(step_ns=100e6)
    waiting = [_waiting("large", 0.030, 0.02), _waiting("a", 0.005, 0.001), _waiting("b", 0.004, 0.0)]
    unsure = _waiting("unsure", 0.006, -0.001)
    assert [one.remedy.name for one in small_ones([*waiting, unsure], evidence)] == ["a", "b"]
    assert small_ones(waiting[:2], evidence) == []


def _waiting(name: str, saved_s: float, low_s: float) -> Proposal:
    prediction = Prediction(saved_s=saved_s, low_s=low_s, high_s=2 * saved_s, basis="")
    return Proposal(remedy=Remedy(name=name, patch={}, why=""), prediction=prediction, verdict="try")


def test_one_small_gain_joins_those_that_were_put_aside_before():
    # one of 5 % is tried alone, unless others too small for any trial can come with it
    step = explanation(
        [
            op("aten::mm", 90, group="matmul", shapes=((3200, 64), (64, 64)), calls=0.0),
            op("aten::zero_", 6, group="optimizer", phase="optimizer", shapes=((64, 64),)),
        ],
        [gap("garbage_collection", 2, phase="other")],
    )
    gains = {"optimizer.zero_grad": 0.95, "process.gc": 0.98}
    _, found = run(Script(explanation=step, gains=gains, noise=0.004))
    assert found["small_gains"].verdict == "kept"
    assert found["zero_grad_set_to_none"].verdict == found["gc_freeze"].verdict == "not tried"
    _, alone = run(Script(explanation=step, gains=gains, noise=0.004), skip=("gc_freeze",))
    assert "small_gains" not in alone
    assert alone["zero_grad_set_to_none"].verdict == "kept"
