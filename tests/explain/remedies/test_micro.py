"""The micro-measurements, run for real in an interpreter of their own."""

import pytest

from steptime.explain.remedies import Micro, measure

pytestmark = [pytest.mark.spawned, pytest.mark.slow]


def test_all_kinds_are_measured():
    requests = [
        {"kind": "dropout", "shape": [16, 8, 8]},
        {"kind": "gelu", "shape": [64, 16, 8]},
        {"kind": "attention", "B": 2, "H": 2, "T": 8, "S": 8, "D": 4, "p": 0.1},
        {"kind": "optimizer", "class": "AdamW", "shapes": [[8], [8, 8]], "momentum": 0},
        {"kind": "matmul", "a": [32, 16], "b": [16, 8]},
        {"kind": "page_fault"},
        {"kind": "compiler"},
    ]
    found = measure(requests, python="", threads=1)
    for request, names in zip(
        requests,
        [
            ("torch_s", "parallel_s"),
            ("torch_s", "fast_s"),
            ("torch_s", "fused_s"),
            ("script_s", "fused_s", "foreach_s"),
            ("fp32_s", "bf16_s"),
            ("page_s",),
        ],
        strict=False,
    ):
        assert all(found.get(request)[name] > 0 for name in names)
    assert "unavailable" in found.get(requests[-1])


def test_a_request_that_fails_takes_no_other_with_it():
    good, bad = {"kind": "matmul", "a": [4, 4], "b": [4, 4]}, {"kind": "matmul", "a": [4, 4], "b": [3, 4]}
    found = measure([bad, good], python="", threads=1)
    assert found.get(good)
    assert not found.get(bad)


def test_an_interpreter_that_is_not_there_measures_nothing():
    assert measure([{"kind": "compiler"}], python="no-such-python", threads=1) == Micro()
