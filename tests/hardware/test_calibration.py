import json

import pytest

from steptime.errors import SteptimeError
from steptime.hardware import (
    Calibration,
    Measured,
    find_device,
    fingerprint,
    load_calibration,
    look_at_machine,
    read_calibration,
    save_calibration,
)
from steptime.hardware.plausible import slower_than_memory, why_impossible
from steptime.ledger import Ledger


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    monkeypatch.delenv("STEPTIME_LEDGER", raising=False)
    return tmp_path


def rate(value, unit="flop/s"):
    return Measured.of([value], unit=unit, method="")


@pytest.fixture
def a_calibration(a_machine):
    facts = {
        "created": "2026-11-30T20:00:00+00:00", "fingerprint": fingerprint(look_at_machine()), "device": "EPYC",
        "machine": a_machine(), "torch": "2.13.0", "threads": 2, "load_average": 0.1, "others_busy": 0.0, "quiet": True,
        "seconds": 20.0, "entries": {"matmul.fp32.flops_per_s": rate(1e11)},
    }  # fmt: skip
    return lambda **known: Calibration(**{**facts, **known})


def test_a_summary_is_the_percentiles_and_the_best():
    # of 1..11, linear percentiles: P10 = 2, P50 = 6, P90 = 10
    samples = [float(value) for value in range(11, 0, -1)]
    fast = Measured.of(samples, unit="byte/s", method="m")
    assert (fast.low, fast.median, fast.high, fast.best, fast.n) == (2, 6, 10, 11, 11)
    assert Measured.of(samples, unit="s", method="m").best == 1  # the best time is the shortest


def test_a_calibration_is_kept_and_found_again(home, a_calibration):
    with Ledger.open() as ledger:
        path = save_calibration(a_calibration(), ledger=ledger)
        (probe,) = ledger.probes(a_calibration().fingerprint)
    assert read_calibration(path) == a_calibration()
    assert Calibration.model_validate(probe.calibration) == a_calibration()
    found = load_calibration()
    assert found == a_calibration()
    assert (found.median("matmul.fp32.flops_per_s"), found.ceiling("nothing")) == (1e11, None)


def test_the_ceiling_is_the_best_sample_and_at_least_that_of_one_thread(a_calibration):
    samples = Measured.of([60e9, 80e9, 20e9], unit="flop/s", method="")
    entries = {"matmul.fp32.flops_per_s": rate(30e9), "matmul.fp32.threads1.flops_per_s": samples, "dispatch.op_s":
               Measured.of([2e-6, 1e-6], unit="s", method="")}  # fmt: skip
    found = a_calibration(entries=entries)
    assert found.ceiling("matmul.fp32.flops_per_s") == 80e9
    assert found.ceiling("matmul.fp32.threads1.flops_per_s") == 80e9
    assert found.ceiling("dispatch.op_s") == 1e-6
    assert found.ceiling("matmul.bf16.flops_per_s") is None


def test_the_newest_that_matches_is_loaded_and_a_quiet_one_first(a_calibration):
    assert load_calibration() is None
    save_calibration(a_calibration(created="2026-01-01T00:00:00+00:00", fingerprint="another"))
    assert load_calibration() is None
    for created, quiet in (("2026-01-02", True), ("2026-01-03", True), ("2026-01-04", False)):
        save_calibration(a_calibration(created=f"{created}T00:00:00+00:00", quiet=quiet))
    assert load_calibration().created.startswith("2026-01-03")
    assert load_calibration("another").created.startswith("2026-01-01")


def test_the_key_changes_with_what_changes_the_measurement(monkeypatch, a_machine):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    base = fingerprint(a_machine(), torch="2.13.0")
    others = [
        fingerprint(a_machine(cores=1), torch="2.13.0", threads=2),
        fingerprint(a_machine(cpu_quota=1.5), torch="2.13.0"),
        fingerprint(a_machine(power_cap_w=200.0), torch="2.13.0"),
        fingerprint(a_machine(), torch="2.12.0"),
        fingerprint(a_machine(), torch="2.13.0", threads=1),
        fingerprint(a_machine(cpu_model=99), torch="2.13.0"),
        fingerprint(a_machine(gpus=("NVIDIA H200",)), torch="2.13.0"),
    ]
    assert len({base, *others}) == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert fingerprint(a_machine(), torch="2.13.0") == others[4]


def test_a_broken_or_foreign_file_is_passed_over_and_named_when_asked_for(home, a_calibration):
    path = save_calibration(a_calibration())
    for name, text in (("a.json", "{"), ("b.json", json.dumps({"version": 99}))):
        (path.parent / name).write_text(text)
        with pytest.raises(SteptimeError, match="is no calibration of this version"):
            read_calibration(path.parent / name)
    assert load_calibration() == a_calibration()
    with pytest.raises(SteptimeError, match="cannot be read"):
        read_calibration(home / "none.json")


def test_a_home_that_cannot_be_written_is_one_line(monkeypatch, a_calibration):
    monkeypatch.setenv("STEPTIME_HOME", "/proc/steptime")
    with pytest.raises(SteptimeError, match="cannot be written"):
        save_calibration(a_calibration())


MILAN = find_device("AMD EPYC Milan")
H100 = find_device("H100-SXM")


# Milan: 32 flops x 4.1 GHz = 131.2 Gflop/s a core, 204.8 GB/s a socket; two cores at hand
@pytest.mark.parametrize(
    ("name", "value", "unit", "verdict"),
    [
        ("matmul.fp32.1024.flops_per_s", 262e9, "flop/s", None),
        ("matmul.fp32.1024.flops_per_s", 280e9, "flop/s", "above"),
        ("matmul.fp32.1024.threads1.flops_per_s", 140e9, "flop/s", "above"),
        ("matmul.bf16.256.flops_per_s", 1e12, "flop/s", None),  # no figure to hold it against
        ("matmul.fp32.64.flops_per_s", 1e3, "flop/s", "below"),
        ("memory.copy.bytes_per_s", 204e9, "byte/s", None),
        ("memory.copy.bytes_per_s", 300e9, "byte/s", "above"),
        ("memory.copy.bytes_per_s", 1e3, "byte/s", "below"),
        ("cache.l2.triad.bytes_per_s", 300e9, "byte/s", None),
        ("cache.l2.triad.bytes_per_s", 1e13, "byte/s", "above"),
        ("dispatch.op_s", 1e-6, "s", None),
        ("dispatch.op_s", 1e-9, "s", "shorter"),
        ("dispatch.op_s", -1e-6, "s", "not a positive number"),
        ("matmul.fp32.64.flops_per_s", float("nan"), "flop/s", "not a positive number"),
        ("cuda.matmul.bf16.8192.flops_per_s", 900e12, "flop/s", None),
        ("cuda.matmul.bf16.8192.flops_per_s", 1100e12, "flop/s", "above"),
        ("cuda.memory.triad.bytes_per_s", 3.5e12, "byte/s", None),
        ("cuda.memory.triad.bytes_per_s", 3.6e12, "byte/s", "above"),
        ("cuda.launch_s", 2e-6, "s", None),
        ("cuda.launch_s", 1e-8, "s", "shorter"),
    ],
)
def test_impossible_readings_are_refused(name, value, unit, verdict, a_machine):
    why = why_impossible(name, rate(value, unit), a_machine(), MILAN, H100)
    assert (why is None) if verdict is None else (why is not None and verdict in why)


def test_one_impossible_sample_is_enough(a_machine):
    samples = [1e11] * 20 + [1e13]
    measured = Measured.of(samples, unit="flop/s", method="")
    assert why_impossible("matmul.fp32.64.flops_per_s", measured, a_machine(), MILAN, None) is not None


def test_an_unknown_gpu_has_no_bound(a_machine):
    assert why_impossible("cuda.matmul.bf16.8192.flops_per_s", rate(1e18), a_machine(), MILAN, None) is None


def test_a_cache_slower_than_memory_is_refused():
    entries = {
        "memory.copy.bytes_per_s": rate(10e9, "byte/s"),
        "memory.copy.threads1.bytes_per_s": rate(8e9, "byte/s"),
        "cache.l2.copy.bytes_per_s": rate(1e9, "byte/s"),
        "cache.l2.copy.threads1.bytes_per_s": rate(9e9, "byte/s"),
        "cache.l3.triad.bytes_per_s": rate(1e9, "byte/s"),
    }
    assert [refused.name for refused in slower_than_memory(entries)] == ["cache.l2.copy.bytes_per_s"]
