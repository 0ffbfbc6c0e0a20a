"""Several processes: the gate, ranks of torchrun, the frameworks, traces on demand."""

import gzip
import json
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from steptime.agent.steps import TRACED
from steptime.attach import GateServer, SessionSpec, WindowSpec, launch, read_session, trace_on_demand

pytestmark = pytest.mark.spawned

ENDLESS = """
import os, time, torch
torch.manual_seed(0)
w = torch.nn.Parameter(torch.ones(4))
opt = torch.optim.SGD([w], lr=0.1)
until = time.monotonic() + 60
while time.monotonic() < until:
    (w ** 2).sum().backward(); opt.step(); opt.zero_grad()
    time.sleep(float(os.environ["PAUSE_S"]))
raise SystemExit("nobody stopped it")
"""

DDP = """
import os, sys, time, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    loss = model(torch.ones(4, 8) * (dist.get_rank() + 1)).mean()
    loss.backward(); opt.step(); opt.zero_grad()
"""

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_gate(tmp_path):
    """Two held processes run in turn, exactly the steps they are let, and stop when told."""
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    pauses_s = {"a": 0.004, "b": 0.012}
    with GateServer(tmp_path / "gate") as gate:
        jobs = {
            name: launch(
                [sys.executable, str(script)],
                SessionSpec(mode="trial", gate=tmp_path / "gate"),
                folder=tmp_path / name,
                environment={"PAUSE_S": str(pause_s), "OMP_NUM_THREADS": "1"},
            )
            for name, pause_s in pauses_s.items()
        }
        blocks: dict[str, list[list[int]]] = {"a": [], "b": []}
        for _ in range(3):
            for name, job in jobs.items():
                blocks[name] += gate.run_block(name, 5, alive=lambda job=job: job.process.poll() is None)
        gate.stop()
        codes = [job.wait() for job in jobs.values()]
    assert codes == [0, 0]
    for name, pause_s in pauses_s.items():
        assert [len(block) for block in blocks[name]] == [5, 5, 5]
        assert min(min(block) for block in blocks[name]) >= pause_s * 1e9
        (rank,) = read_session(tmp_path / name).ranks
        assert len(rank.steps) == 1 + 3 * 6  # the first step finds the gate; a block has a settling step
        own = rank.steps.duration_ns[rank.steps.flags & 2 == 0]
        np.testing.assert_array_equal(own, np.concatenate(blocks[name]))


def test_trace_on_demand(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    job = launch(
        [sys.executable, str(script)],
        SessionSpec(mode="run"),
        folder=tmp_path / "s",
        environment={"PAUSE_S": "0.001", "OMP_NUM_THREADS": "1"},
    )
    try:
        until = time.monotonic() + 60
        while not list((tmp_path / "s").glob("demand/*.sock")) and time.monotonic() < until:
            time.sleep(0.05)
        (socket,) = (tmp_path / "s").glob("demand/*.sock")
        assert socket.stat().st_mode & 0o777 == 0o600
        path = trace_on_demand(job.process.pid, 4)
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        assert sum(str(event.get("name")).startswith("steptime.step#") for event in events) == 4
    finally:
        assert job.stop() != 0


@pytest.mark.slow
def test_torchrun_ranks_trace_the_same_steps_and_stop_together(run_script):
    windows = WindowSpec(
        warmup_steps=3, untraced_steps=5, traced_steps=3, stack_steps=5, untraced_ms=300, stacks_ms=300
    )
    done = run_script(
        DDP,
        spec=SessionSpec(windows=windows, stop_after_windows=True),
        before=(sys.executable, *TORCHRUN),
    )
    assert done.code == 0, done.err
    assert [(rank.rank, rank.world_size) for rank in done.record.ranks] == [(0, 2), (1, 2)]
    traced = [np.flatnonzero(rank.steps.window == TRACED).tolist() for rank in done.record.ranks]
    assert traced[0] == traced[1]
    assert len(traced[0]) == 4
    assert len(done.record.ranks[0].steps) == len(done.record.ranks[1].steps)
    assert all(rank.trace is not None for rank in done.record.ranks)
    assert done.record.unattached == ()


@pytest.mark.slow
def test_gate_holds_all_ranks(tmp_path):
    script = tmp_path / "ddp.py"
    script.write_text(DDP)
    with GateServer(tmp_path / "gate") as gate:
        job = launch(
            [sys.executable, *TORCHRUN, str(script)],
            SessionSpec(mode="trial", gate=tmp_path / "gate"),
            folder=tmp_path / "s",
            environment={"OMP_NUM_THREADS": "1"},
        )
        blocks = gate.run_block("s", 6, alive=lambda: job.process.poll() is None)
        assert [len(block) for block in blocks] == [6, 6]
        gate.stop("s")
        assert job.wait() == 0


LIGHTNING = """
import sys, torch, warnings
warnings.filterwarnings("ignore")
import lightning
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = self.layer(batch[0]).pow(2).mean()
        print("step", loss.item())
        return loss
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)

lightning.seed_everything(1)
x = torch.randn(60, 4)
trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", accumulate_grad_batches=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Model(), DataLoader(TensorDataset(x), batch_size=5))
"""

TRAINER = """
import torch, transformers
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
data = [{"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(i % 2)} for i in range(40)]
arguments = TrainingArguments("out", num_train_epochs=2, per_device_train_batch_size=4, report_to=[], use_cpu=True,
    gradient_accumulation_steps=2, save_steps=5, disable_tqdm=True, seed=3)
Trainer(BertForSequenceClassification(config), arguments, train_dataset=data).train()
"""

ACCELERATE = """
import torch, accelerate
from torch.utils.data import DataLoader, TensorDataset
accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(36, 4)), batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (x,) in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(x).pow(2).mean())
        optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "framework", "steps", "seeded"),
    [
        (LIGHTNING, "lightning", 12, True),  # 60 / 5 / 2 batches a step, two epochs
        (TRAINER, "transformers", 10, True),  # 40 / 4 / 2, two epochs
        (ACCELERATE, "accelerate", 6, False),  # 36 / 2 / 3
    ],
    ids=["lightning", "transformers", "accelerate"],
)
def test_frameworks(run_script, tmp_path, source, framework, steps, seeded):
    pytest.importorskip(framework)
    done = run_script(source, spec=SessionSpec(mode="run", redirect=tmp_path / "elsewhere", audit=True))
    assert done.code == 0, done.err
    (rank,) = done.record.ranks
    assert rank.process["framework"] == framework
    assert len(rank.steps) == steps
    assert rank.seeded is seeded
    ((_, losses),) = rank.losses.items()
    assert np.isfinite(losses).all()
    assert rank.audit["backward_calls_per_step"]["first"] == [3 if framework == "accelerate" else 2]
    assert not (tmp_path / "out").exists()
    if framework == "lightning":
        printed = np.array([float(line.split()[1]) for line in done.out.splitlines() if line.startswith("step")])
        # Lightning scales the loss of an accumulated batch by the number of batches, and backward sees that
        np.testing.assert_allclose(losses, printed.reshape(-1, 2).mean(1) / 2, rtol=1e-6)
    if framework == "transformers":
        moved = Path(f"{tmp_path}/elsewhere{tmp_path}/out")
        assert (moved / "checkpoint-10" / "model.safetensors").exists()
    assert done.record.escaped == ()
