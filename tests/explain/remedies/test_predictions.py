"""Predictions on steps whose parts are known, against the same sums done by hand."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from steptime.explain import Facts
from steptime.explain.remedies import Evidence, Item, Micro, evidence_of, remedies_for
from steptime.explain.remedies.data import hidden_ns
from steptime.explain.remedies.remedy import key

if "scripted" not in sys.modules:
    spec = importlib.util.spec_from_file_location("scripted", Path(__file__).parents[2] / "tune" / "scripted.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["scripted"] = module
    spec.loader.exec_module(module)
from scripted import TRANSFORMER, explanation, gap, op

B, H, T, D = 64, 4, 50, 16
SCORES = (B, H, T, T)


def proposals(step, micro=None, *, cores=2):
    evidence = evidence_of(step, cores=cores)
    return {p.remedy.name: p for p in remedies_for(evidence, micro or Micro())}, evidence


def measured(*pairs):
    return Micro(results={key(request): result for request, result in pairs})


def test_the_items_sum_to_the_step():
    _, evidence = proposals(TRANSFORMER)
    assert sum(item.ns for item in evidence.items) == TRANSFORMER.step.median_ns


def test_dropout_saves_what_its_ops_cost_less_what_the_parallel_op_costs():
    micro = measured(({"kind": "dropout", "shape": [64, 50, 64]}, {"torch_s": 0.0075, "parallel_s": 0.0005}))
    found, _ = proposals(TRANSFORMER, micro)
    # 40 ms of draws, 3 of division, 4 of multiplies; six parallel ops of half a millisecond
    prediction = found["parallel_dropout"].prediction
    assert prediction.saved_s == pytest.approx(0.047 - 6 * 0.0005)
    assert prediction.low_s <= 6 * (0.0075 - 0.0005) <= prediction.high_s


def test_only_multiplies_of_a_masks_shape_are_counted():
    other = explanation(
        [
            op("aten::bernoulli_", 10),
            op("aten::mul", 5, group="elementwise", shapes=((64, 50, 256), (64, 50, 256))),
        ]
    )
    micro = measured(({"kind": "dropout", "shape": [64, 50, 64]}, {"torch_s": 0.01, "parallel_s": 0.0}))
    found, _ = proposals(other, micro)
    assert found["parallel_dropout"].prediction.saved_s == pytest.approx(0.010)


def attention_step():
    inside = "aten::scaled_dot_product_attention"
    return explanation(
        [
            op("aten::bmm", 3, group="matmul", shapes=((B * H, T, D), (B * H, D, T)), caller=inside),
            op("aten::_softmax", 2, group="attention", shapes=(SCORES,), caller=inside),
            op("aten::bernoulli_", 6, shapes=(SCORES,), caller=inside),
            op("aten::bmm", 3, group="matmul", shapes=((B * H, T, T), (B * H, T, D)), caller=inside),
            op("aten::bmm", 8, group="matmul", shapes=((B * H, T, D), (B * H, D, T)), phase="backward"),
            op("aten::_softmax_backward_data", 2, group="attention", shapes=(SCORES, SCORES), phase="backward"),
            op("aten::mm", 20, group="matmul", shapes=((3200, 64), (64, 64))),
        ]
    )


def test_attention_saves_its_unfused_ops_less_the_fused_op():
    request = {"kind": "attention", "B": B, "H": H, "T": T, "S": T, "D": D, "p": 0.1}
    found, _ = proposals(attention_step(), measured((request, {"torch_s": 0.024, "fused_s": 0.006})))
    assert found["fused_attention"].prediction.saved_s == pytest.approx(0.024 - 0.006)


def test_after_dropout_is_kept_attention_is_predicted_on_what_is_left():
    request = {"kind": "attention", "B": B, "H": H, "T": T, "S": T, "D": D, "p": 0.1}
    masks = {"kind": "dropout", "shape": list(SCORES)}
    micro = measured(
        (request, {"torch_s": 0.024, "fused_s": 0.006}), (masks, {"torch_s": 0.0075, "parallel_s": 0.0006})
    )
    found, evidence = proposals(attention_step(), micro)
    before = found["fused_attention"].prediction.saved_s
    dropout = found["parallel_dropout"].prediction
    left = evidence.after(dropout.claims, step_ns=evidence.step_ns - 1e9 * dropout.saved_s)
    after = {p.remedy.name: p for p in remedies_for(left, micro)}["fused_attention"].prediction.saved_s
    assert after == pytest.approx(before - dropout.saved_s)


def test_attention_without_dropout_is_left_to_torch():
    step = explanation([op("aten::_softmax", 5, shapes=(SCORES,), group="attention")])
    assert proposals(step)[0]["fused_attention"].verdict == "not tried"


def test_the_fused_optimizer_saves_the_measured_share_of_the_optimizers_time():
    facts = Facts(device="cpu", threads=2, optimizers=({"type": "AdamW", "parameters": 4, "elements": 400},))
    step = explanation(
        [op("aten::add_", 10, group="optimizer", phase="optimizer"), op("aten::mm", 90, group="matmul")], facts=facts
    )
    request = {"kind": "optimizer", "class": "AdamW", "shapes": [[100]] * 4, "momentum": 0}
    micro = measured((request, {"script_s": 0.001, "fused_s": 0.0002, "foreach_s": 0.0008}))
    found, _ = proposals(step, micro)
    assert found["fused_optimizer"].prediction.saved_s == pytest.approx(0.010 * 0.8)
    assert found["foreach_optimizer"].verdict == "not tried"


def test_a_fused_optimizer_is_not_proposed_again():
    step = explanation([op("aten::_fused_adamw_", 10, group="optimizer", phase="optimizer")])
    assert proposals(step)[0]["fused_optimizer"].why == "the script's optimizer is fused already"


def test_a_thread_hides_the_loader_when_a_core_is_idle_and_half_of_the_overflow_when_not():
    # one serial op: the other core is free for the whole loader
    serial = evidence_of(explanation([op("aten::bernoulli_", 80)], [gap("data", 20)]), cores=2)
    assert hidden_ns(serial, 20e6)[0] == pytest.approx(0.9 * 20e6)
    # both cores busy (80 % each): 80 + 64 + 20 ms of work on two cores take 82 ms
    busy = evidence_of(
        explanation([op("aten::mm", 80, group="matmul", shapes=((3200, 64), (64, 64)))], [gap("data", 20)]), cores=2
    )
    assert hidden_ns(busy, 20e6)[0] == pytest.approx(0.9 * 18e6)


def test_one_core_hides_nothing():
    one = evidence_of(explanation([op("aten::mm", 80, group="matmul")], [gap("data", 20)]), cores=1)
    assert hidden_ns(one, 20e6)[0] == 0.0


def test_bfloat16_that_is_slower_at_these_shapes_is_not_tried():
    request = {"kind": "matmul", "a": [3200, 64], "b": [64, 64]}
    micro = measured((request, {"fp32_s": 1e-3, "bf16_s": 2e-3, "medium_s": 1e-3}))
    proposal = proposals(TRANSFORMER, micro)[0]["autocast_bf16"]
    assert proposal.verdict == "not tried"
    assert proposal.prediction.saved_s == pytest.approx(-0.020)


def test_a_small_share_is_put_aside_with_its_bound():
    step = explanation([op("aten::mm", 990, group="matmul"), op("aten::bernoulli_", 5)])
    proposal = proposals(step)[0]["parallel_dropout"]
    assert proposal.verdict == "not tried"
    assert "at most" in proposal.why


def test_compilation_is_unavailable_without_pythons_headers():
    micro = measured(({"kind": "compiler"}, {"unavailable": "Python's header files are not installed"}))
    assert "unavailable" in proposals(TRANSFORMER, micro)[0]["compile"].why


def test_communication_is_nobodys_problem_in_one_process():
    assert proposals(TRANSFORMER)[0]["ddp_bucket_view"].why == "one process: nothing is communicated"


def test_those_to_try_come_first_the_most_promising_in_front():
    ranked = remedies_for(evidence_of(TRANSFORMER, cores=2), Micro())
    tried = [p for p in ranked if p.verdict == "try"]
    assert ranked[: len(tried)] == tried
    sure = [p.prediction.saved_s for p in tried if p.prediction.low_s >= 0]
    assert sure == sorted(sure, reverse=True)
    assert all(p.prediction.low_s <= p.prediction.saved_s <= p.prediction.high_s for p in tried)


def test_a_sure_gain_goes_before_an_unsure_one_that_promises_more():
    step = explanation(
        [op("aten::bernoulli_", 30, calls=1.0), op("aten::add", 100, group="elementwise", shapes=((64, 50, 64),))]
    )
    micro = measured(({"kind": "dropout", "shape": [64, 50, 64]}, {"torch_s": 0.03, "parallel_s": 0.002}))
    ranked = [p.remedy.name for p in remedies_for(evidence_of(step, cores=2), micro) if p.verdict == "try"]
    found, _ = proposals(step, micro)
    assert found["compile"].prediction.saved_s > found["parallel_dropout"].prediction.saved_s
    assert found["compile"].prediction.low_s < 0 < found["parallel_dropout"].prediction.low_s
    assert ranked.index("parallel_dropout") < ranked.index("compile")


def test_compiling_promises_nothing_for_random_numbers():
    drawing = explanation([op("aten::bernoulli_", 50), op("aten::mm", 50, group="matmul", calls=0.0)])
    without = explanation([op("aten::bernoulli_", 0), op("aten::mm", 50, group="matmul", calls=0.0)])
    first, second = (proposals(step)[0]["compile"] for step in (drawing, without))
    assert second.prediction is None
    assert first.prediction is None


def test_compiling_takes_back_what_the_kernels_it_does_not_call_have_saved():
    before = evidence_of(TRANSFORMER, cores=2)
    after = before.after(((0, 0.9),), step_ns=before.step_ns - 36e6, remedy="parallel_dropout")
    alone, behind = (
        next(p for p in remedies_for(one, Micro()) if p.remedy.name == "compile")
        for one in (replace(after, kept={}), after)
    )
    assert alone.prediction.saved_s - behind.prediction.saved_s == pytest.approx(0.036)
    assert behind.verdict == "not tried"
    assert "falls back to torch's own dropout" in behind.why


def test_kernels_inside_a_compiled_model_are_not_tried():
    before = evidence_of(attention_step(), cores=2)
    after = before.after((), step_ns=0.8 * before.step_ns, remedy="compile")
    found = {p.remedy.name: p for p in remedies_for(after, Micro())}
    assert found["parallel_dropout"].verdict == found["fused_attention"].verdict == "not tried"
    assert "compiled model" in found["parallel_dropout"].why


def test_counted_page_faults_times_their_measured_cost():
    step = replace(TRANSFORMER, facts=Facts(device="cpu", threads=2, process={"minor_faults_per_step": 20_000.0}))
    micro = measured(({"kind": "page_fault"}, {"page_s": 0.4e-6}))
    prediction = proposals(step, micro)[0]["allocator_large_pools"].prediction
    assert prediction.low_s <= prediction.saved_s <= 20_000 * 0.4e-6 <= prediction.high_s
    assert proposals(step, micro)[0]["allocator_large_pools"].verdict == "try"


def test_a_slower_machine_stretches_every_item_and_what_was_measured_alone():
    before = Evidence(
        step_ns=50e6,
        items=(
            Item(kind="op", name="aten::mm", group="matmul", phase="forward", ns=40e6, high_ns=44e6),
            Item(kind="idle", name="data", group="idle", phase="data", ns=10e6),
        ),
        cores=2,
        threads=2,
        contention=1.1,
    )
    after = before.at(60e6)
    assert [one.ns for one in after.items] == pytest.approx([48e6, 12e6])
    assert after.items[0].high_ns == pytest.approx(52.8e6)
    assert after.contention == pytest.approx(1.32)
    assert sum(one.ns for one in after.items) == pytest.approx(after.step_ns)
