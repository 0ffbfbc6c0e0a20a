"""The Explanation as a record: JSON there and back, and what its numbers promise."""

import json
from pathlib import Path

import pytest
from timelines import COLLECTIVE, KERNEL, MARK, OP, STREAM, timeline

from steptime.errors import SteptimeError
from steptime.explain import Explanation, explain_trace
from steptime.timeline import Inputs

SAMPLE = Path(__file__).parent / "data" / "ticks_explanation.json"
MM = Inputs(shapes=((1000, 1000), (1000, 1000)), types=("float", "float"))


class Ceilings:
    """2 TFLOP/s in float32 and 100 GB/s."""

    def ceiling(self, name):
        return {"matmul.fp32.flops_per_s": 2e12, "memory.triad.bytes_per_s": 1e11}.get(name)


def one_step():
    return timeline(
        ("steptime.step#0", 0, 10_000_000, MARK),
        ("aten::mm", 0, 4_000_000, OP, 0, {"inputs": 0}),
        ("aten::add", 4_000_000, 5_000_000, OP),
        table=(MM,),
    )


def test_the_sample_of_a_real_session_is_read_and_holds_its_promises():
    data = json.loads(SAMPLE.read_text())
    found = Explanation.from_json(data)
    assert sum(cell.ns for cell in found.corrected) == found.step.median_ns
    assert sum(cell.ns for cell in found.breakdown.cells) == found.breakdown.total_ns
    assert all(cell.low_ns <= cell.ns <= cell.high_ns for cell in found.corrected)
    assert found.step.low_ns <= found.step.median_ns <= found.step.high_ns
    assert {op.phase for op in found.ops} >= {"forward", "backward", "optimizer"}
    assert any(op.module.startswith("TickTransformer.encoder") for op in found.ops)


def test_json_there_and_back():
    found = explain_trace(one_step(), Ceilings())
    text = json.dumps(found.to_json())
    again = Explanation.from_json(json.loads(text))
    assert json.dumps(again.to_json()) == text.replace(
        f'"each_step_ns": [{found.breakdown.total_ns}]', '"each_step_ns": []'
    )


@pytest.mark.parametrize("change", [{"version": 99}, {"step": 3}, {"ops": [{"name": "x"}]}])
def test_another_version_or_shape_is_refused(change):
    data = explain_trace(one_step()).to_json() | change
    with pytest.raises(SteptimeError, match=r"version|not an explanation"):
        Explanation.from_json(data)


def test_mfu_is_flops_over_step_time_over_the_ceiling():
    """2e9 FLOPs in a step of 10 ms on a machine of 2 TFLOP/s: 10 %; the product alone ran at 25 %."""
    found = explain_trace(one_step(), Ceilings())
    assert found.mfu == pytest.approx(0.10)
    (row,) = [row for row in found.utilisation if row.work == "arithmetic"]
    assert row.achieved_flops_per_s == pytest.approx(2e9 / 4e-3)
    assert row.intensity == pytest.approx(2e9 / (3 * 4e6))
    assert (row.ridge, row.side) == (pytest.approx(20.0), "compute")


def test_without_ceilings_nothing_is_claimed():
    found = explain_trace(one_step())
    assert found.mfu is None
    assert all(row.side is None and row.ceiling_flops_per_s is None for row in found.utilisation)


def test_the_verdict_says_how_long_and_what():
    assert explain_trace(one_step()).verdict == (
        "A step takes 10.0 ms; 50% of it is Python between ops in forward, then 40% matrix products and 10% elementwise"
        " ops."
    )


def test_a_trace_without_steps_is_not_called_a_step():
    assert explain_trace(timeline(("aten::mm", 0, 1000, OP))).verdict == (
        "The trace marks no step and lasts 1.00 us; 100% of it is matrix products in forward."
    )


def test_a_device_trace_charges_kernels_to_the_op_that_launched_them():
    found = explain_trace(
        timeline(
            ("ProfilerStep#0", 0, 100, MARK),
            ("aten::mm", 0, 20, OP, 0, {"inputs": 0}),
            ("cudaLaunchKernel", 10, 15, 3, 0, {"correlation": 4}),
            ("sgemm", 20, 80, KERNEL, STREAM, {"correlation": 4}),
            ("ncclDevKernel_AllReduce", 80, 100, COLLECTIVE, STREAM),
            table=(MM,),
        )
    )
    rows = {(op.name, op.resource): op for op in found.ops}
    assert rows["aten::mm", "compute"].self_ns == 60
    assert rows["aten::mm", "compute"].flops == 2 * 1000**3
    assert rows["ncclDevKernel_AllReduce", "exposed_communication"].self_ns == 20


def test_a_trace_without_time_is_refused():
    with pytest.raises(SteptimeError, match="no step"):
        explain_trace(timeline(("aten::mm", 5, 5, OP)))
