"""The loop on synthetic scripts whose truth is known."""

import pytest
from scripted import Script

from steptime.errors import SteptimeError
from steptime.explain.remedies import Micro
from steptime.tune import NoBooks, TuneSettings, tune


class Books(NoBooks):
    def __init__(self):
        self.order = []

    def predicted(self, proposal):
        self.order.append(("predicted", proposal.remedy.name))
        return proposal.remedy.name

    def decided(self, result, prediction_id):
        self.order.append((result.verdict, result.name))


def run(script, *, books=None, **settings):
    settings = TuneSettings(**{"budget_s": 600.0, **settings})
    return tune(
        script, settings, books or NoBooks(), clock=script.clock, measure_micro=lambda evidence: Micro(), command=("t",)
    )


def verdicts(result):
    return {remedy.name: remedy.verdict for remedy in result.remedies}


def test_what_is_faster_is_kept_and_the_ratio_is_the_truth():
    result = run(Script(gains={"kernels.dropout": 0.6, "data.prefetch_thread": 0.8}))
    assert verdicts(result)["parallel_dropout"] == "kept"
    assert verdicts(result)["prefetch_thread"] == "kept"
    assert verdicts(result)["fused_optimizer"] == "not tried"  # but within the bundle, which gained nothing:
    assert verdicts(result)["small_gains"] in ("rejected", "undecided")
    gain = result.confirmation.gain
    assert gain.low < 1 / 0.48 < gain.high
    assert result.setup.plan.difference() == {"kernels.dropout": "parallel", "data.prefetch_thread": 2}


def test_every_prediction_is_written_before_any_verdict():
    books = Books()
    run(Script(gains={"kernels.dropout": 0.6}), books=books)
    kinds = [kind == "predicted" for kind, _ in books.order]
    assert kinds == sorted(kinds, reverse=True)
    assert ("predicted", "parallel_dropout") in books.order


def test_a_prediction_is_in_seconds_of_the_step_as_it_is_before_its_trial():
    books = Books()
    gains = {"kernels.dropout": 0.6}
    calm = {one.name: one for one in run(Script(gains=gains)).remedies}["parallel_dropout"]
    slow = {one.name: one for one in run(Script(gains=gains, pace=1.4), books=books).remedies}["parallel_dropout"]
    now, before = slow.proposal.prediction, calm.proposal.prediction
    assert now.saved_s == pytest.approx(1.4 * before.saved_s, rel=0.05)
    assert now.high_s == pytest.approx(1.4 * before.high_s, rel=0.05)
    assert slow.duel.saved_s[0] == pytest.approx(1.4 * calm.duel.saved_s[0], rel=0.05)
    assert "before the trial" in now.basis
    assert books.order.index(("predicted", "parallel_dropout")) < books.order.index(("kept", "parallel_dropout"))


def test_a_gain_that_was_overtaken_by_another_is_predicted_anew():
    # once the thread hides the loader, workers have nothing left to hide
    result = run(Script(gains={"data.prefetch_thread": 0.87, "data.workers": 0.9, "kernels.dropout": 0.6}))
    found = {remedy.name: remedy for remedy in result.remedies}
    if found["prefetch_thread"].verdict == "kept":
        before = 0.9 * 0.015
        assert found["loader_workers"].proposal.prediction.saved_s < before


def test_nothing_changed_is_not_called_faster():
    kept = sum(bool(run(Script(seed=seed)).kept) for seed in range(40))
    assert kept <= 2


def test_a_remedy_that_shifts_the_loss_is_taken_back_and_the_rest_stays():
    script = Script(
        gains={"kernels.dropout": 0.6, "data.prefetch_thread": 0.8}, shifts={"kernels.dropout": 0.3}, pair_noise=0.0001
    )
    result = run(script)
    assert verdicts(result)["parallel_dropout"] == "rejected"
    assert verdicts(result)["prefetch_thread"] == "kept"
    assert result.quality.verdict == "equivalent"
    gain = result.confirmation.gain
    assert gain.low < 1 / 0.8 < gain.high


def test_pairs_that_scatter_leave_it_undecided():
    result = run(Script(gains={"kernels.dropout": 0.6}, pair_noise=0.5))
    assert verdicts(result)["parallel_dropout"] == "undecided"
    assert not result.kept


def test_more_seeds_are_taken_when_five_have_no_power():
    script = Script(gains={"kernels.dropout": 0.6}, pair_noise=0.06)
    run(script)
    assert max(script.trained) > 5


def test_another_learning_rate_is_rejected_by_the_audit():
    script = Script(
        gains={"kernels.dropout": 0.6}, audits={"kernels.dropout": {"optimizers": [{"settings": {"lr": 0.11}}]}}
    )
    result = run(script)
    assert verdicts(result)["parallel_dropout"] == "rejected"
    assert any("lr" in remedy.why for remedy in result.remedies)


def test_a_script_that_cannot_be_seeded_keeps_nothing_unless_told():
    script = {"gains": {"kernels.dropout": 0.6}, "seeded": False}
    result = run(Script(**script))
    assert result.quality.verdict == "cannot tell"
    assert not result.kept
    told = run(Script(**script), accept_untested=True)
    assert [remedy.name for remedy in told.kept] == ["parallel_dropout"]


def test_a_change_that_did_not_take_effect_is_refused_with_its_reason():
    result = run(Script(gains={"kernels.dropout": 0.6}, refusals={"kernels.dropout": "no C++ compiler"}))
    found = {remedy.name: remedy for remedy in result.remedies}["parallel_dropout"]
    assert found.verdict == "refused"
    assert "no C++ compiler" in found.why


def test_what_the_budget_does_not_hold_is_not_tried():
    result = run(Script(gains={"kernels.dropout": 0.6}), budget_s=60.0)
    assert all(remedy.why.startswith("budget") for remedy in result.remedies if "budget" in remedy.why)
    assert any("budget" in remedy.why for remedy in result.remedies)


def test_the_budget_is_kept():
    script = Script(gains={"kernels.dropout": 0.6, "data.prefetch_thread": 0.8})
    run(script, budget_s=240.0)
    assert script.now <= 240.0


def test_only_and_skip():
    script = {"gains": {"kernels.dropout": 0.6, "data.prefetch_thread": 0.8}}
    assert [r.name for r in run(Script(**script), only=("prefetch_thread",)).kept] == ["prefetch_thread"]
    assert "parallel_dropout" not in [r.name for r in run(Script(**script), skip=("parallel_dropout",)).kept]
    with pytest.raises(SteptimeError, match="no remedy nonsense"):
        run(Script(**script), only=("nonsense",))


def test_every_process_is_ended():
    script = Script(gains={"kernels.dropout": 0.6, "data.prefetch_thread": 0.8})
    run(script)
    assert script.opened == script.closed


def test_a_compiled_plan_says_when_it_pays():
    result = run(Script(gains={"compiler.mode": 0.5}))
    assert verdicts(result)["compile"] == "kept"
    # 12 s of compilation against half of a 100 ms step
    assert result.break_even_steps == pytest.approx(12 / 0.05, rel=0.1)


def test_the_json_has_what_the_page_promises():
    data = run(Script(gains={"kernels.dropout": 0.6})).to_json()
    assert {"speedup", "quality", "step", "remedies", "plan", "diff", "compile_s", "break_even_steps"} <= set(data)
    kept = next(item for item in data["remedies"] if item["verdict"] == "kept")
    assert kept["low_s"] <= kept["predicted_s"] <= kept["high_s"]
    assert kept["measured_low_s"] <= kept["measured_s"] <= kept["measured_high_s"]


def test_a_file_of_the_users_own_that_changes_the_loss_is_rejected(tmp_path):
    own = tmp_path / "faster.py"
    own.write_text('"""Faster."""\nSAVES = (0.1, 0.5, 0.6)\ndef apply(report): pass\n')
    good = run(Script(gains={"faster.py": 0.5}), own=(own,))
    assert verdicts(good)["faster"] == "kept"
    bad = run(Script(gains={"faster.py": 0.5}, audits={"faster.py": {"optimizers": []}}), own=(own,))
    assert verdicts(bad)["faster"] == "rejected"


def test_a_machine_that_changed_speed_is_said_to_have():
    gains = {"kernels.dropout": 0.6}
    assert not run(Script(gains=gains)).notes
    (note,) = run(Script(gains=gains, pace=1.4)).notes
    assert "100.0 ms" in note
    assert "140" in note
