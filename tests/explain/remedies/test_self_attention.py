"""The attention remedy on whole self-attention modules, against the same sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptime.explain.remedies import Evidence, Item, Micro, remedies_for, requests
from steptime.explain.remedies.remedy import key

MS = 1e6
MODULE = "Model.encoder.layers.0.self_attn"
INSIDE = "aten::scaled_dot_product_attention"
SCORES = (64, 4, 50, 50)
REQUEST = {"kind": "self_attention", "B": 64, "H": 4, "T": 50, "S": 50, "D": 16, "p": 0.1}
SECONDS = {"torch_s": 0.020, "parallel_s": 0.012, "fused_s": 0.005}


def item(name, ms, *shapes, caller="", group="attention", phase="forward", module=MODULE):
    return Item(kind="op", name=name, group=group, phase=phase, ns=ms * MS, calls=1.0, shapes=shapes, caller=caller,
                dtype="float32", module=module)  # fmt: skip


ATTENTION = (
    item("aten::addmm", 1.0, (192,), (3200, 64), (64, 192), caller="aten::linear", group="matmul"),
    item("aten::select", 0.0, (3, 50, 64, 64), group="other"),
    item("aten::bmm", 1.0, (256, 50, 16), (256, 16, 50), caller=INSIDE),
    item("aten::_softmax", 1.0, SCORES, caller=INSIDE),
    item("aten::bernoulli_", 6.0, SCORES, caller=INSIDE, group="random"),
    item("aten::bmm", 1.0, (256, 50, 50), (256, 50, 16), caller=INSIDE),
    item("aten::_softmax_backward_data", 1.0, SCORES, SCORES, caller=INSIDE, phase="backward"),
    item("aten::fill_", 3.0, (3, 50, 64, 64), caller="aten::select", phase="backward", group="elementwise"),
)
OF_THE_MODULE_MS = 14.0
REST = item("aten::mm", 20.0, (3200, 64), (64, 64), group="matmul", module="Model.head")


def step(*items, **facts):
    return Evidence(step_ns=sum(one.ns for one in items), items=items, cores=2, threads=2, facts=facts)


STEP = step(*ATTENTION, REST)


def proposal(evidence, request=REQUEST, seconds=SECONDS):
    micro = Micro(results={key(request): seconds} if seconds else {})
    return next(one for one in remedies_for(evidence, micro) if one.remedy.name == "fused_attention")


def test_it_saves_the_modules_time_by_the_ratio_of_the_two_forms():
    assert REQUEST in requests(STEP)
    prediction = proposal(STEP).prediction
    assert prediction.saved_s == pytest.approx(OF_THE_MODULE_MS * (1 - 5 / 20) / 1e3)
    assert prediction.low_s <= 0.020 - 0.005 <= prediction.high_s


def test_where_the_masks_are_parallel_already_that_form_is_compared():
    found = proposal(replace(STEP, kept={"parallel_dropout": 1.0}))
    assert found.prediction.saved_s == pytest.approx(OF_THE_MODULE_MS * (1 - 5 / 12) / 1e3)


def test_no_mask_is_left_for_others_to_draw_in_parallel():
    prediction = proposal(STEP).prediction
    left = STEP.after(prediction.claims, step_ns=STEP.step_ns - 1e9 * prediction.saved_s, remedy="fused_attention")
    found = {one.remedy.name: one for one in remedies_for(left, Micro())}
    assert found["parallel_dropout"].verdict == "not tried"


def test_attention_over_other_keys_is_measured_by_itself():
    memory = (64, 4, 50, 9)
    cross = (
        *ATTENTION[:2],
        item("aten::bmm", 1.0, (256, 50, 16), (256, 16, 9), caller=INSIDE),
        *(replace(one, shapes=(memory,)) for one in ATTENTION[3:5]),
        item("aten::bmm", 1.0, (256, 50, 9), (256, 9, 16), caller=INSIDE),
    )
    kinds = [one["kind"] for one in requests(step(*cross, REST))]
    assert "self_attention" not in kinds
    assert "attention" in kinds
