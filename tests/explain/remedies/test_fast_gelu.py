"""The GELU remedy on steps whose parts are known, against the same sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptime.explain.remedies import Evidence, Item, Micro, remedies_for, requests
from steptime.explain.remedies.remedy import key

MS = 1e6
WIDE = (64, 50, 256)
REQUEST = {"kind": "gelu", "shape": list(WIDE)}


def item(name, ms, shape=WIDE, *, calls=2.0, dtype="float32"):
    shapes = (shape,) if name == "aten::gelu" else (shape, shape)
    return Item(kind="op", name=name, group="elementwise", phase="forward", ns=ms * MS, calls=calls, shapes=shapes,
                dtype=dtype)  # fmt: skip


def step(*items, **facts):
    rest = Item(kind="op", name="aten::mm", group="matmul", phase="forward", ns=30 * MS, shapes=((64, 64),))
    items = (rest, *items)
    return Evidence(step_ns=sum(one.ns for one in items), items=items, cores=2, threads=2, facts=facts)


STEP = step(item("aten::gelu", 2.0), item("aten::gelu_backward", 4.0))


def proposal(evidence, **seconds):
    micro = Micro(results={key(REQUEST): seconds} if seconds else {})
    return next(one for one in remedies_for(evidence, micro) if one.remedy.name == "fast_gelu")


def test_it_saves_both_passes_less_the_kernel_at_their_shape():
    assert REQUEST in requests(STEP)
    found = proposal(STEP, torch_s=0.0029, fast_s=0.001)
    # 2 ms forward, 4 ms backward; two calls of 1 ms for both passes
    assert found.prediction.saved_s == pytest.approx(0.006 - 2 * 0.001)
    assert found.prediction.low_s <= 2 * (0.0029 - 0.001) <= found.prediction.high_s
    assert found.verdict == "try"
    assert found.remedy.changes_numerics == "rounding"
    assert not found.remedy.changes_random_stream


def test_the_claims_leave_the_kernels_own_time_in_the_step():
    prediction = proposal(STEP, torch_s=0.0029, fast_s=0.001).prediction
    left = STEP.after(prediction.claims, step_ns=STEP.step_ns - 1e9 * prediction.saved_s)
    assert sum(one.ns for one in left.items if "gelu" in one.name) == pytest.approx(2 * 0.001 * 1e9)


def test_a_crowded_step_slows_the_kernel_too():
    found = proposal(replace(STEP, contention=1.5), torch_s=0.0029, fast_s=0.001)
    assert found.prediction.saved_s == pytest.approx(0.006 - 2 * 0.0015)


@pytest.mark.parametrize(
    "evidence",
    [
        step(item("aten::gelu", 2.0, (10, 10))),
        step(item("aten::gelu", 2.0, dtype="c10::BFloat16")),
        step(item("aten::gelu", 2.0), device="cuda"),
        replace(STEP, kept={"compile": 1.0}),
        STEP,
    ],
    ids=["small", "bfloat16", "cuda", "compiled", "not measured"],
)
def test_it_is_put_aside_where_the_kernel_would_not_act(evidence):
    assert proposal(evidence).verdict == "not tried"
