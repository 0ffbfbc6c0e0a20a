"""The Breakdown: it closes on whatever timeline, and each definition holds on a case drawn by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timelines import CALL, COLLECTIVE, COPY, HOST, KERNEL, MARK, OP, OTHER_THREAD, PYTHON, STREAM, timeline

from steptime.explain import PHASES, RESOURCES, Breakdown, Cell, break_down
from steptime.explain.cells import add_up

NAMES = {
    OP: ["aten::mm", "aten::linear", "aten::bernoulli_", "autograd::engine::evaluate_function: MmBackward0",
         "aten::item", "c10d::allreduce_", "aten::view"],
    MARK: ["steptime.step#1", "ProfilerStep#2", "enumerate(DataLoader)#next", "Optimizer.step#SGD.step",
           "steptime.backward", "steptime.checkpoint", "gloo:all_reduce", "Optimizer.zero_grad#SGD.zero_grad"],
    CALL: ["cudaLaunchKernel", "cudaStreamSynchronize", "cudaMalloc"],
    KERNEL: ["ampere_sgemm", "elementwise_kernel"],
    COPY: ["Memcpy HtoD"],
    COLLECTIVE: ["ncclDevKernel_AllReduce"],
}  # fmt: skip


def any_event(kinds):
    return st.sampled_from(kinds).flatmap(
        lambda kind: st.builds(
            lambda name, start, length, lane, link: (
                name, start, start + length, kind,
                STREAM if kind in (KERNEL, COPY, COLLECTIVE) else lane, {"correlation": link, "sequence": link},
            ),
            st.sampled_from(NAMES[kind]), st.integers(0, 200), st.integers(0, 60),
            st.sampled_from([HOST, OTHER_THREAD]), st.integers(-1, 4),
        )
    )  # fmt: skip


def closes(found: Breakdown) -> None:
    assert sum(cell.ns for cell in found.cells) == found.total_ns
    assert all(cell.ns >= 0 and cell.resource in RESOURCES and cell.phase in PHASES for cell in found.cells)
    keys = [(cell.resource, cell.group, cell.phase) for cell in found.cells]
    assert len(set(keys)) == len(keys)
    assert sum(each.total_ns for each in found.each) == found.total_ns


@settings(max_examples=100, deadline=None)
@given(st.lists(any_event([OP, MARK]), min_size=1, max_size=25))
def test_a_host_timeline_closes_exactly(events):
    closes(break_down(timeline(*events)))


@settings(max_examples=100, deadline=None)
@given(st.lists(any_event([OP, MARK, CALL, KERNEL, COPY, COLLECTIVE]), min_size=1, max_size=30))
def test_a_device_timeline_closes_exactly(events):
    closes(break_down(timeline(*events)))


@settings(max_examples=60, deadline=None)
@given(st.lists(any_event([OP, MARK, KERNEL]), min_size=1, max_size=15), st.integers(-50, 100), st.integers(1, 300))
def test_any_window_closes_exactly(events, start, length):
    found = break_down(timeline(*events), (start, start + length))
    closes(found)
    assert found.total_ns == length


def cells(found: Breakdown) -> dict:
    return {(cell.resource, cell.group, cell.phase): cell.ns for cell in found.cells if cell.ns}


def test_a_training_step_on_a_cpu():
    """The innermost op wins; time in no op is idle; the phases are the annotations' and autograd's."""
    found = break_down(
        timeline(
            ("steptime.step#0", 0, 1000, MARK),
            ("aten::item", 10, 20, OP),  # after the last optimizer step, before this step's batch: other
            ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 50, 150, MARK),
            ("aten::stack", 60, 90, OP),
            ("aten::linear", 200, 300, OP),
            ("aten::addmm", 210, 290, OP),
            ("aten::dropout", 300, 340, OP),
            ("aten::bernoulli_", 310, 330, OP),
            ("autograd::engine::evaluate_function: AddmmBackward0", 400, 500, OP),
            ("aten::mm", 410, 480, OP),
            ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 520, 530, OP),
            ("aten::linalg_vector_norm", 600, 650, OP),  # gradient clipping
            ("Optimizer.step#SGD.step", 700, 900, MARK),
            ("aten::_foreach_add_", 710, 860, OP),
        )
    )
    assert found.total_ns == 1000
    assert found.window == "steptime.step"
    assert cells(found) == {
        ("idle", "python", "other"): 40 + (600 - 530) + 50 + 100,
        ("idle", "sync", "other"): 10,
        ("idle", "data", "data"): 100 - 30,
        ("compute", "copy", "data"): 30,
        ("idle", "python", "forward"): 50 + (400 - 340),
        ("compute", "matmul", "forward"): 100,
        ("compute", "random", "forward"): 40,
        ("compute", "other", "backward"): 100 - 70 + 10,
        ("compute", "matmul", "backward"): 70,
        ("idle", "python", "backward"): 20,
        ("compute", "reduction", "other"): 50,
        ("compute", "optimizer", "optimizer"): 150,
        ("idle", "python", "optimizer"): 50,
    }


def test_communication_of_another_thread_is_exposed_only_where_the_training_thread_computes_nothing():
    found = break_down(
        timeline(
            ("steptime.step#0", 0, 100, MARK),
            ("steptime.backward", 0, 100, MARK),
            ("autograd::engine::evaluate_function: MmBackward0", 0, 40, OP),
            ("gloo:all_reduce", 20, 90, MARK, OTHER_THREAD),
        )
    )
    assert cells(found) == {
        ("compute", "other", "backward"): 40,
        ("exposed_communication", "all_reduce", "backward"): 50,
        ("idle", "python", "backward"): 10,
    }


def test_attention_on_the_math_path_is_attention_also_in_backward():
    """bmm inside scaled_dot_product_attention, and the node that it made (linked by the sequence number)."""
    found = break_down(
        timeline(
            ("steptime.step#0", 0, 100, MARK),
            ("aten::scaled_dot_product_attention", 0, 40, OP, HOST, {"sequence": 7}),
            ("aten::bmm", 0, 30, OP, HOST, {"sequence": 8}),
            ("aten::bernoulli_", 30, 40, OP, HOST, {"sequence": 9}),
            ("autograd::engine::evaluate_function: BmmBackward0", 40, 100, OP, HOST, {"sequence": 8}),
            ("aten::bmm", 40, 100, OP),
        )
    )
    assert cells(found) == {
        ("compute", "attention", "forward"): 30,
        ("compute", "random", "forward"): 10,
        ("compute", "attention", "backward"): 60,
    }


def test_a_device_step_with_the_cause_of_each_gap():
    found = break_down(
        timeline(
            ("ProfilerStep#1", 0, 300, MARK),
            ("enumerate(DataLoader)#next", 0, 40, MARK),
            ("aten::mm", 60, 100, OP),
            ("cudaLaunchKernel", 80, 90, CALL, HOST, {"correlation": 1}),
            ("ampere_sgemm_128x64", 110, 210, KERNEL, STREAM, {"correlation": 1}),
            ("ncclDevKernel_AllReduce_Sum", 200, 250, COLLECTIVE, STREAM),
            ("Memcpy HtoD (Pinned -> Device)", 240, 260, COPY, STREAM),
        )
    )
    assert cells(found) == {
        ("idle", "data", "forward"): 40,
        ("idle", "python", "forward"): 20 + 40,  # before the op, and after the last kernel
        ("idle", "dispatch", "forward"): 20,
        ("idle", "launch", "forward"): 30,
        ("compute", "matmul", "forward"): 100,
        ("exposed_communication", "all_reduce", "other"): 40,
        ("exposed_copy", "host_to_device", "other"): 10,
    }


def test_kernels_take_the_phase_of_the_thread_that_launched_them():
    found = break_down(
        timeline(
            ("ProfilerStep#1", 0, 100, MARK),
            ("autograd::engine::evaluate_function: MmBackward0", 0, 50, OP, OTHER_THREAD),
            ("cudaLaunchKernel", 10, 20, CALL, OTHER_THREAD, {"correlation": 1}),
            ("sgemm", 20, 100, KERNEL, STREAM, {"correlation": 1}),
        )
    )
    assert found.ns(resource="compute", phase="backward") == 80


def test_a_device_step_holds_the_kernels_that_outlast_its_annotation():
    found = break_down(
        timeline(
            ("ProfilerStep#1", 0, 50, MARK),
            ("cudaLaunchKernel", 10, 20, CALL, HOST, {"correlation": 1}),
            ("sgemm", 20, 90, KERNEL, STREAM, {"correlation": 1}),
        )
    )
    assert found.total_ns == 90


def test_garbage_collection_is_named_where_stacks_were_recorded():
    found = break_down(timeline(("steptime.step#0", 0, 100, MARK), ("<built-in function collect>", 20, 60, PYTHON)))
    assert found.ns(group="garbage_collection") == 40


def test_several_steps_are_added_up_and_kept():
    found = break_down(
        timeline(
            ("steptime.step#0", 0, 100, MARK),
            ("aten::mm", 0, 60, OP),
            ("steptime.step#1", 150, 300, MARK),
            ("aten::mm", 150, 200, OP),
        )
    )
    assert (found.steps, found.total_ns, found.step_ns) == (2, 250, 125)
    assert [each.ns(group="matmul") for each in found.each] == [60, 50]


def test_recording_an_event_is_charged_to_what_encloses_it():
    found = break_down(
        timeline(
            ("steptime.step#0", 0, 100, MARK),
            ("aten::linear", 10, 90, OP),
            ("aten::t", 20, 30, OP),
            ("aten::addmm", 40, 80, OP),
        )
    )
    events = {(cell.resource, cell.group): cell.events for cell in found.cells}
    assert events["compute", "matmul"] == 2
    assert events["idle", "python"] >= 1


def test_cells_that_do_not_sum_are_refused():
    with pytest.raises(ValueError, match="sum to 9"):
        Breakdown(total_ns=10, steps=1, cells=(Cell(resource="idle", group="python", phase="other", ns=9),))
    with pytest.raises(ValueError, match="nothing"):
        add_up([])
    with pytest.raises(ValueError, match="without events"):
        break_down(timeline())
