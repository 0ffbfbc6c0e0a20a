"""Reading Kineto traces: schemas, ranks, links, and what cannot be read."""

import gzip
import json

import numpy as np
import pytest

from steptime.errors import SteptimeError
from steptime.timeline import EventKind, read_trace


def event(name, ts, dur, cat="cpu_op", tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def write(folder, events, name="trace.json", **top):
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": events}))
    return path


def test_events_come_with_names_times_shapes_and_links(tmp_path):
    path = write(
        tmp_path,
        [
            event("aten::mm", 12.5, 2.25, **{
                "External id": 5, "Sequence number": 3, "Input Dims": [[2, 3], [3, 4], []],
                "Input type": ["float", "float", "Scalar"], "Concrete Inputs": ["", "", "1"],
            }),
            event("cudaLaunchKernel", 13.0, 1.0, "cuda_runtime", correlation=9),
            event("gemm", 15.001, 4.0, "kernel", tid=20, correlation=9),
        ],
        baseTimeNanoseconds=1_000_000,
        deviceProperties=[{"name": "NVIDIA H200", "id": 0}],
        distributedInfo={"rank": 3, "world_size": 8, "backend": "nccl"},
    )  # fmt: skip
    timeline = read_trace(path)
    assert [timeline.text(i) for i in range(3)] == ["aten::mm", "cudaLaunchKernel", "gemm"]
    assert timeline.start_ns.tolist() == [1_012_500, 1_013_000, 1_015_001]
    assert timeline.duration_ns.tolist() == [2250, 1000, 4000]
    assert timeline.kind.tolist() == [EventKind.CPU_OP, EventKind.RUNTIME, EventKind.KERNEL]
    assert timeline.input_table[timeline.inputs[0]].shapes == ((2, 3), (3, 4), ())
    assert (timeline.external[0], timeline.sequence[0]) == (5, 3)
    assert timeline.correlation.tolist() == [-1, 9, 9]
    assert timeline.ranks == (3,)
    assert (timeline.world_size, timeline.device) == (8, "NVIDIA H200")
    assert [lane.is_device for lane in timeline.lanes] == [False, True]


def test_the_schema_of_2021_reads_the_same(tmp_path):
    today = write(tmp_path, [
        event("aten::add", 10, 5, **{"External id": 2}),
        event("ProfilerStep#1", 9, 20, "user_annotation"),
        event("add_kernel", 17, 3, "kernel", tid=7, correlation=4, **{"External id": 2}),
        event("Memcpy HtoD", 21, 2, "gpu_memcpy", tid=7, correlation=5, bytes=64),
    ], "today.json")  # fmt: skip
    old = write(tmp_path, [
        event("aten::add", 10, 5, "Operator", tid="1", **{"External id": 2}),
        event("ProfilerStep#1", 9, 20, "Operator", tid="1"),
        event("add_kernel", 17, 3, "Kernel", tid="stream 7", correlation=4, **{"external id": 2}),
        event("Memcpy HtoD", 21, 2, "Memcpy", tid="stream 7", correlation=5, bytes=64),
    ], "old.json")  # fmt: skip
    a, b = read_trace(today), read_trace(old)
    for column in ("start_ns", "duration_ns", "kind", "external", "correlation", "bytes"):
        np.testing.assert_array_equal(getattr(a, column), getattr(b, column))
    assert [lane.tid for lane in a.lanes] == [lane.tid for lane in b.lanes]


def test_python_functions_are_read_only_when_asked(tmp_path):
    path = write(tmp_path, [event("train.py(3): f", 1, 9, "python_function"), event("aten::add", 2, 1)])
    assert len(read_trace(path)) == 1
    assert read_trace(path).quality.python_skipped == 1
    assert read_trace(path, python=True).kind.tolist() == [EventKind.PYTHON, EventKind.CPU_OP]


def test_an_enclosing_event_comes_before_what_it_encloses(tmp_path):
    path = write(tmp_path, [event("inner", 5, 1), event("outer", 5, 10)])
    assert read_trace(path).text(0) == "outer"


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", {}),
        ("multimem_all_reduce_kernel<bf16>", {}),
        ("some_custom_kernel", {"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 100}),
    ],
)
def test_kernels_that_communicate(tmp_path, name, args):
    timeline = read_trace(write(tmp_path, [event(name, 1, 2, "kernel", **args)]))
    assert timeline.kind.tolist() == [EventKind.COMMUNICATION]
    if args:
        assert timeline.bytes.tolist() == [200]


def test_a_gzip_of_several_members_and_a_bare_list(tmp_path):
    content = json.dumps([event("aten::add", 1, 2)]).encode()
    path = tmp_path / "trace.bin"
    path.write_bytes(gzip.compress(content[:20]) + gzip.compress(content[20:]))
    assert len(read_trace(path)) == 1


def test_traces_of_one_job_keep_their_ranks_and_others_are_numbered(tmp_path):
    ranked = [
        write(tmp_path, [event("aten::add", 1 + rank, 2)], f"{rank}.json", distributedInfo={"rank": rank})
        for rank in (4, 2)
    ]
    both = read_trace(ranked)
    assert both.ranks == (2, 4)
    assert both.of_rank(4).start_ns.tolist() == [5000]
    assert {lane.rank for lane in both.lanes} == {2, 4}
    assert read_trace([ranked[0], ranked[0]]).ranks == (0, 1)


def test_negative_durations_and_missing_times_are_counted(tmp_path):
    without = event("late", 3, 1)
    del without["ts"]
    quality = read_trace(write(tmp_path, [event("aten::add", 1, -2), without])).quality
    assert (quality.negative_durations, quality.without_time) == (1, 1)
    assert len(quality.notes) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"traceEvents": [{"ph": "X", "na', "not a readable Kineto trace"),
        (b"", "not a readable Kineto trace"),
        (b'{"traceEvents": []}', "no event"),
        (b'{"events": []}', "traceEvents"),
        (gzip.compress(b'{"traceEvents": []}' * 50)[:-12], "damaged or cut off"),
        (b"\x00\x01\x02\x03", "not a readable Kineto trace"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_names_the_file(tmp_path, content, says):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(SteptimeError, match=says) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SteptimeError, match="No such file"):
        read_trace(tmp_path / "nowhere.json")
