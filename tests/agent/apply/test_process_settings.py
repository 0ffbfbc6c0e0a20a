from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

SOURCE = str(Path(__file__).resolve().parents[3] / "src")


def test_threads_are_set_and_stay(applied):
    applied(process={"threads": 1})
    torch.set_num_threads(7)
    assert torch.get_num_threads() == 1
    assert "7 is overruled" in applied.why("process.threads")


def test_cores_are_those_listed_or_as_many_as_threads(applied):
    allowed = os.sched_getaffinity(0)
    one = min(allowed)
    applied(process={"affinity": [one]})
    assert os.sched_getaffinity(0) == {one}
    applied.back()
    assert os.sched_getaffinity(0) == allowed
    applied(process={"affinity": "compact", "threads": 1})
    assert len(os.sched_getaffinity(0)) == 1
    applied.back()
    applied(process={"affinity": [9999]})
    assert os.sched_getaffinity(0) == allowed
    assert not applied.ok("process.affinity")


def test_onednn_is_off_until_taken_back(applied):
    applied(process={"mkldnn": False})
    assert not torch._C._get_mkldnn_enabled()
    applied.back()
    assert torch._C._get_mkldnn_enabled()


def test_gc_freezes_after_the_warm_up(applied):
    applied(process={"gc": "freeze"})
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    before = gc.get_freeze_count()
    for step in range(10):
        assert gc.get_freeze_count() == before, step
        optimizer.step()
    assert gc.get_freeze_count() > before + 1000
    applied.back()
    assert gc.get_freeze_count() == 0


@pytest.mark.spawned
def test_denormals_are_zero_in_operations_of_several_threads_too():
    """1e-40 is denormal in float32: times one it is zero only where the processor flushes."""
    code = (
        "import threading, torch\n"
        "from steptime.agent.apply import apply_plan\n"
        "apply_plan({'process': {'flush_denormal': True, 'threads': 4}}, lambda *told: None)\n"
        "x = torch.full((1 << 20,), 2e-38) * 1e-2\n"
        "found = [int(x.count_nonzero())]\n"
        "work = threading.Thread(target=lambda: found.append(int((torch.full((9,), 2e-38) * 1e-2).count_nonzero())))\n"
        "work.start(); work.join(); print(found)\n"
    )
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[0, 0]", done.stderr
    assert (torch.full((9,), 2e-38) * 1e-2).count_nonzero() == 9


def test_an_allocator_that_was_not_loaded_is_reported(applied):
    applied(process={"allocator": "jemalloc"})
    assert applied.ok("process.allocator") is ("jemalloc" in Path("/proc/self/maps").read_text())
