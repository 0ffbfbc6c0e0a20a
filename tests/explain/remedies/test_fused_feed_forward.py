"""The feed-forward remedy on steps whose parts are known, against the same sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptime.explain.remedies import Evidence, Item, Micro, remedies_for, requests
from steptime.explain.remedies.remedy import key

MS = 1e6
LAYER = "Model.encoder.layers.0"
REQUEST = {"kind": "feed_forward", "rows": 3200, "width": 64, "hidden": 256, "activation": "gelu", "p": 0.1}


def item(module, name, ms, shapes, *, phase="forward", group="elementwise"):
    return Item(kind="op", name=name, group=group, phase=phase, ns=ms * MS, calls=1.0, shapes=shapes, dtype="float32",
                module=module)  # fmt: skip


def layer(path=LAYER, hidden=256):
    wide = (64, 50, hidden)
    return (
        item(f"{path}.linear1", "aten::addmm", 2.0, ((hidden,), (3200, 64), (64, hidden)), group="matmul"),
        item(path, "aten::gelu", 2.0, (wide,)),
        item(f"{path}.dropout", "aten::bernoulli_", 9.0, (wide,), group="random"),
        item(f"{path}.linear2", "aten::addmm", 2.0, ((64,), (3200, hidden), (hidden, 64)), group="matmul"),
        item(f"{path}.dropout2", "aten::bernoulli_", 2.0, ((64, 50, 64),), group="random"),
        item(f"{path}.linear2", "aten::mm", 4.0, ((3200, 64), (64, hidden)), phase="backward", group="matmul"),
        item(path, "aten::gelu_backward", 3.0, (wide, wide), phase="backward"),
        item(f"{path}.linear1", "aten::mm", 4.0, ((3200, hidden), (hidden, 64)), phase="backward", group="matmul"),
        # not of the block: the residual sum and the attention's dropout
        item(path, "aten::add", 1.0, ((64, 50, 64), (64, 50, 64))),
        item(f"{path}.dropout1", "aten::bernoulli_", 2.0, ((64, 50, 64),), group="random"),
    )


OF_THE_BLOCK_MS = 28.0


def step(*items, **facts):
    return Evidence(step_ns=sum(one.ns for one in items), items=items, cores=2, threads=2, facts=facts)


STEP = step(*layer())


def proposal(evidence, **seconds):
    micro = Micro(results={key(REQUEST): seconds} if seconds else {})
    return next(one for one in remedies_for(evidence, micro) if one.remedy.name == "fused_feed_forward")


LEFT = 8 / 26  # of the block's time, by the ratio of the two measurements


def test_it_saves_what_the_kernel_leaves_of_the_blocks_ops():
    assert REQUEST in requests(STEP)
    found = proposal(STEP, torch_s=0.026, parallel_s=0.016, fused_s=0.008)
    assert found.prediction.saved_s == pytest.approx(OF_THE_BLOCK_MS * (1 - LEFT) / 1e3)
    assert found.prediction.low_s <= 0.026 - 0.008 <= found.prediction.high_s
    assert found.verdict == "try"
    assert found.remedy.changes_random_stream


def test_where_the_masks_are_parallel_already_that_form_is_compared():
    found = proposal(replace(STEP, kept={"parallel_dropout": 1.0}), torch_s=0.026, parallel_s=0.016, fused_s=0.008)
    assert found.prediction.saved_s == pytest.approx(OF_THE_BLOCK_MS * (1 - 8 / 16) / 1e3)


def test_two_layers_save_twice():
    both = step(*layer(), *layer("Model.encoder.layers.1"))
    assert [one for one in requests(both) if one["kind"] == "feed_forward"] == [REQUEST]
    found = proposal(both, torch_s=0.026, parallel_s=0.016, fused_s=0.008)
    assert found.prediction.saved_s == pytest.approx(2 * OF_THE_BLOCK_MS * (1 - LEFT) / 1e3)


def test_the_kernels_time_is_left_to_the_products_and_no_draw_or_gelu_is():
    prediction = proposal(STEP, torch_s=0.026, parallel_s=0.016, fused_s=0.008).prediction
    left = STEP.after(prediction.claims, step_ns=STEP.step_ns - 1e9 * prediction.saved_s, remedy="fused_feed_forward")
    assert sum(one.ns for one in left.items if one.group == "matmul") == pytest.approx(OF_THE_BLOCK_MS * LEFT * MS)
    assert [one.module for one in left.items if "bernoulli" in one.name and one.ns > 0] == [f"{LAYER}.dropout1"]
    names = {one.remedy.name: one.verdict for one in remedies_for(left, Micro())}
    assert names["fast_gelu"] == "not tried"
    assert not any(one["kind"] == "gelu" for one in requests(left))


def test_of_a_decoder_layer_the_third_dropout_is_meant():
    third = item(f"{LAYER}.dropout3", "aten::bernoulli_", 5.0, ((64, 50, 64),), group="random")
    found = proposal(step(*layer(), third), torch_s=0.026, parallel_s=0.016, fused_s=0.008)
    # dropout2 stays, dropout3 goes
    assert found.prediction.saved_s == pytest.approx((OF_THE_BLOCK_MS - 2 + 5) * (1 - LEFT) / 1e3)


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        (step(*layer(hidden=250)), "no feed-forward block"),
        (step(*layer(hidden=8192)), "no feed-forward block"),
        (step(*(one for one in layer() if "gelu" not in one.name)), "no feed-forward block"),
        (step(*layer(), device="cuda"), "accelerator"),
        (replace(STEP, kept={"compile": 1.0}), "compiled"),
        (replace(STEP, kept={"autocast_bf16": 1.0}), "float32"),
    ],
)
def test_where_it_is_not_tried(evidence, why):
    found = proposal(evidence, torch_s=0.026, parallel_s=0.016, fused_s=0.008)
    assert found.verdict == "not tried"
    assert why in found.why
    assert not any(one["kind"] == "feed_forward" for one in requests(evidence))


def test_without_a_measurement_nothing_is_claimed():
    assert proposal(STEP).verdict == "not tried"
