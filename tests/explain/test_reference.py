"""Real traces against an independent calculator's interval unions (reference_ns.json), to the nanosecond.

The traces are A100 to H200 and MI250 to MI355 class GPUs, schemas of 2021 to 2026, integer and fractional microseconds.
"""

import json

import numpy as np
import pytest

from steptime.explain import break_down
from steptime.explain.sweep import own
from steptime.timeline import EventKind, Timeline, read_trace

pytestmark = pytest.mark.shared

LARGE_BYTES = 500_000  # compressed; the larger ones are left to the slow run


def expected(shared) -> dict:
    values = json.loads((shared / "traces" / "reference_ns.json").read_text())
    return {
        name: value
        for name, value in values.items()
        if "error" not in value and (shared / "traces" / name).exists()
    }  # fmt: skip


def union_ns(timeline: Timeline, kinds: list, window: tuple[int, int]) -> int:
    mask = np.isin(timeline.kind, kinds)
    segments = own(timeline.start_ns[mask], timeline.end_ns[mask], np.zeros(int(mask.sum()), np.int64), window)
    return int(segments.duration_ns[segments.owner >= 0].sum())


def differences(shared, name: str, reference: dict) -> dict:
    timeline = read_trace(shared / "traces" / name)
    device = timeline.on_device
    window = (int(timeline.start_ns[device].min()), int(timeline.end_ns[device].max()))
    found = break_down(timeline, window)
    ours = {
        "span_us": window[1] - window[0],
        "compute_us": found.ns(resource="compute"),
        "exposed_comm_us": found.ns(resource="exposed_communication"),
        "exposed_mem_us": found.ns(resource="exposed_copy"),
        "idle_us": found.ns(resource="idle"),
        "busy_us": found.total_ns - found.ns(resource="idle"),
        "comm_us": union_ns(timeline, [EventKind.COMMUNICATION], window),
        "mem_us": union_ns(timeline, [EventKind.MEMCPY, EventKind.MEMSET], window),
    }
    return {key: (ns, reference[key]) for key, ns in ours.items() if ns != round(reference[key] * 1000)}


def test_traces_equal_the_reference_to_the_nanosecond(shared):
    checked = 0
    for name, reference in expected(shared).items():
        if (shared / "traces" / name).stat().st_size <= LARGE_BYTES:
            assert differences(shared, name, reference) == {}, name
            checked += 1
    assert checked >= 18


@pytest.mark.slow
def test_large_traces_equal_the_reference_to_the_nanosecond(shared):
    for name, reference in expected(shared).items():
        if (shared / "traces" / name).stat().st_size > LARGE_BYTES:
            assert differences(shared, name, reference) == {}, name


def test_steps_of_a_real_data_parallel_trace_close_and_wait_for_the_all_reduce(shared):
    name = "AMD-AGI+TraceLens__tests~traces~mi300~resnet_act_checkpoint.json.gz"
    found = break_down(read_trace(shared / "traces" / name))
    assert found.window == "ProfilerStep"
    assert sum(cell.ns for cell in found.cells) == found.total_ns == sum(each.total_ns for each in found.each)
    waited = found.ns(resource="exposed_communication", group="all_reduce", phase="backward")
    assert waited > 0.3 * found.total_ns


@pytest.mark.slow
def test_a_loader_bound_trace_says_data(shared):
    """The torch profiler's own sample of a slow DataLoader (2021)."""
    name = "pytorch+kineto__tb_plugin~samples~resnet50_num_workers_0~worker0.1623143089861.pt.trace.json.gz"
    found = break_down(read_trace(shared / "traces" / name))
    causes = {
        cell.group: found.ns(resource="idle", group=cell.group) for cell in found.cells if cell.resource == "idle"
    }
    assert max(causes, key=causes.__getitem__) == "data"
