import json

import pytest
import torch
from typer.testing import CliRunner

from steptime.cli import make_app
from steptime.hardware import Calibration, load_calibration, probe, probe_cpu, probe_cuda
from steptime.hardware.timing import MIN_SAMPLE_S, others_busy, sample_seconds
from steptime.ledger import Ledger


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    monkeypatch.delenv("STEPTIME_LEDGER", raising=False)


class Clock:
    """A clock that only the timed calls move."""

    def __init__(self, call_s, first_s=0.0):
        self.now, self.calls, self.call_s, self.first_s = 100.0, 0, call_s, first_s

    def __call__(self):
        return self.now

    def call(self):
        self.calls += 1
        self.now += self.call_s + (self.first_s if self.calls == 1 else 0.0)


def test_short_calls_are_repeated_until_the_clock_does_not_matter():
    clock = Clock(1e-6)
    samples = sample_seconds(clock.call, budget_s=1.0, most=5, clock=clock)
    assert samples == pytest.approx([1e-6] * 5)
    assert clock.calls == 2 + 5 * round(MIN_SAMPLE_S / 1e-6)


def test_a_slow_call_ends_in_time_and_the_first_is_not_counted():
    clock = Clock(0.3, first_s=5.0)
    samples = sample_seconds(clock.call, budget_s=1.0, clock=clock)
    assert samples == pytest.approx([0.3])
    assert clock.calls == 2


def test_the_share_that_others_take_is_a_share():
    assert 0.0 <= others_busy(frozenset({0}), seconds=0.05) <= 1.0
    assert others_busy(frozenset({10_000}), seconds=0.0) == 0.0


def test_rates_follow_from_the_seconds_and_impossible_ones_are_named(monkeypatch):
    monkeypatch.setattr(probe_cpu, "sample_seconds", lambda call, *, budget_s: [0.01])
    monkeypatch.setattr(probe_cpu, "_footprint_beyond_caches", lambda machine: 12_000_000)
    before = torch.get_num_threads()
    found = probe(True)
    assert torch.get_num_threads() == before
    # two flops a multiply-add; STREAM's bytes: copy reads one array and writes one, triad reads two and writes one
    assert found.median("matmul.fp32.64.flops_per_s") == pytest.approx(2 * 64**3 / 0.01)
    assert found.median("matmul.fp32.flops_per_s") == pytest.approx(2 * 1024**3 / 0.01)
    assert found.median("memory.copy.bytes_per_s") == pytest.approx(12e6 / 0.01)
    assert found.median("memory.triad.bytes_per_s") == pytest.approx(12e6 / 0.01)
    assert found.median("dispatch.op_s") == 0.01
    assert "dispatch.autograd_backward_op_s" in {refused.name for refused in found.refused}  # both equal: 0 s an op
    assert Calibration.model_validate_json(found.model_dump_json()) == found


def test_the_gpus_rates_follow_from_the_seconds(monkeypatch):
    monkeypatch.setattr(probe_cuda, "SIZES", (8,))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (48_000, 48_000))

    def seconds(torch, call, repeats):
        call()
        return [0.01] * repeats

    monkeypatch.setattr(probe_cuda, "_event_seconds", seconds)
    device = torch.device("cpu")  # stands in: the calls are torch's, only the events are CUDA's
    before = torch.get_float32_matmul_precision()
    try:
        found = {**dict(probe_cuda._matmul(torch, device, 2)), **dict(probe_cuda._memory(torch, device, 2))}
    finally:
        torch.set_float32_matmul_precision(before)
    matmuls = {f"cuda.matmul.{dtype}.8.flops_per_s": 2 * 8**3 / 0.01 for dtype in ("fp32", "tf32", "bf16", "fp16")}
    moves = {f"cuda.memory.{kind}.bytes_per_s": 48_000 / 4 / 0.01 for kind in ("copy", "triad")}
    assert {name: reading.median for name, reading in found.items()} == pytest.approx(matmuls | moves)


def test_a_dtype_without_hardware_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(probe_cpu, "sample_seconds", lambda call, *, budget_s: [0.5])
    found = dict(probe_cpu.matmul(threads=1, quick=True, isa={}))
    assert found["matmul.bf16.64.flops_per_s"].median == pytest.approx(2 * 64**3 / 0.5)
    assert "one call would take about 32.0 s" in found["matmul.bf16.256.flops_per_s"].why  # 0.5 s x 4**3


def test_onednn_names_the_kernel_it_ran_and_stdout_stays_clean(capfd):
    convolution = torch.nn.Conv2d(8, 8, 3)
    images = torch.randn(2, 8, 16, 16)
    with torch.no_grad():
        kernel = probe_cpu.onednn_kernel(lambda: convolution(images))
    if not torch.backends.mkldnn.is_available():
        assert kernel is None
    else:
        assert kernel is not None
        assert ":" in kernel
    assert probe_cpu.onednn_kernel(lambda: None) is None
    assert capfd.readouterr().out == ""


def test_the_command_prints_and_keeps_what_was_measured(monkeypatch):
    monkeypatch.setattr(probe_cpu, "sample_seconds", lambda call, *, budget_s: [0.01])
    monkeypatch.setattr(probe_cpu, "_footprint_beyond_caches", lambda machine: 12_000_000)
    result = CliRunner().invoke(make_app(), ["probe", "--quick", "--json"])
    assert result.exit_code == 0, result.output
    printed = Calibration.model_validate(json.loads(result.stdout))
    assert load_calibration() == printed
    with Ledger.open() as ledger:
        (run,), (row,) = ledger.runs(), ledger.probes()
    assert (run.kind, run.status, run.hardware) == ("probe", "finished", printed.fingerprint)
    assert (row.run, row.fingerprint) == (run.id, printed.fingerprint)
    page = CliRunner().invoke(make_app(), ["probe", "--quick"]).stdout
    assert "memory.triad" in page
    assert "no dispatch.autograd_backward_op_s" in page


@pytest.mark.slow
def test_a_real_probe_takes_every_reading_or_says_why_not():
    found = probe(True)
    refused = {reading.name for reading in found.refused}
    for name in (
        *(f"matmul.{dtype}.{size}.flops_per_s" for dtype in probe_cpu.DTYPES for size in probe_cpu.SIZES),
        *(f"memory.{kind}.bytes_per_s" for kind in ("copy", "triad")),
        *(f"dispatch.{kind}op_s" for kind in ("", "autograd_forward_", "autograd_backward_")),
    ):
        assert name in found.entries or name in refused
    assert all(reading.low <= reading.median <= reading.high for reading in found.entries.values())
    assert {"matmul.fp32.flops_per_s", "memory.triad.bytes_per_s", "dispatch.op_s"} <= set(found.entries)
