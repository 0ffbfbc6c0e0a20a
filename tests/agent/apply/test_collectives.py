from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = str(Path(__file__).resolve().parents[3] / "src")

SCRIPT = """
import json, os, sys
import torch
from steptime.agent.apply import apply_plan
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()

def train(plan, **options):
    told = {}
    undo = apply_plan(plan, lambda name, ok, why: told.__setitem__(name, [ok, why]))
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)), **options.get("ddp", {}))
    if "hook" in options:
        model.register_comm_hook(None, options["hook"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank + 1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    view = model.gradient_as_bucket_view, model.static_graph, model.bucket_bytes_cap
    undo()
    return [torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), told, view]

def allreduce(state, bucket):
    flat = bucket.buffer()
    return dist.all_reduce(flat.div_(2), async_op=True).get_future().then(lambda done: done.value()[0])

settings = {"bucket_cap_mb": 1, "gradient_as_bucket_view": True, "static_graph": True}
found = {
    "plain": train({}),
    "fp16": train({"collectives": {"compression": "fp16"}}),
    "bf16": train({"collectives": {"compression": "bf16"}}),
    "settings": train({"collectives": settings}),
    "chosen": train({"collectives": settings}, ddp={"bucket_cap_mb": 5, "find_unused_parameters": True}),
    "own hook": train({"collectives": {"compression": "bf16"}}, hook=allreduce),
    "autocast": train({"precision": {"autocast": "bf16"}, "collectives": {"compression": "bf16"}}),
}
if rank == 0:
    print(json.dumps(found))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    script = tmp_path_factory.mktemp("ddp") / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


pytestmark = pytest.mark.spawned


@pytest.mark.parametrize(("kind", "bits"), [("fp16", 11), ("bf16", 8)])
def test_compressed_gradients_differ_by_rounding_only(found, kind, bits):
    (truth, _, _), (weights, told, _) = found["plain"], found[kind]
    worst = max(abs(a - b) for a, b in zip(truth, weights, strict=True))
    # five steps of 0.1 times gradients below 4, each rounded to `bits` significant bits
    assert 0 < worst < 5 * 0.1 * 4 * 2.0**-bits
    assert told["collectives.compression"][0]


def test_settings_are_given_where_the_script_made_no_choice(found):
    weights, told, view = found["settings"]
    assert view == [True, True, 1 << 20]
    assert weights == pytest.approx(found["plain"][0], rel=1e-6, abs=1e-7)
    assert all(ok for ok, _ in told.values())
    _, told, view = found["chosen"]
    assert view == [True, False, 5 << 20]
    assert not told["collectives.bucket_cap_mb"][0]
    assert not told["collectives.static_graph"][0]


def test_the_scripts_own_hook_stays(found):
    weights, told, _ = found["own hook"]
    assert weights == pytest.approx(found["plain"][0], rel=1e-6, abs=1e-7)
    assert "allreduce" in told["collectives.compression"][1]


def test_precision_and_compression_go_together(found):
    told = found["autocast"][1]
    assert told["precision.autocast"][0]
    assert told["collectives.compression"][0]
