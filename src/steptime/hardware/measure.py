"""Measures this machine in under a minute: what it multiplies, moves and dispatches, the ceilings of every step."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast

from steptime.errors import SteptimeError, missing_extra
from steptime.hardware import probe_cpu, probe_cuda
from steptime.hardware.calibration import (
    QUIET_LOAD,
    Calibration,
    Measured,
    Reading,
    Refused,
    default_threads,
    fingerprint,
)
from steptime.hardware.catalog import cpu_device, find_device
from steptime.hardware.device import Device, Dtype, best_path
from steptime.hardware.machine import Machine, look_at_machine
from steptime.hardware.plausible import slower_than_memory, why_impossible
from steptime.hardware.timing import others_busy

Progress = Callable[[str], None]


def probe(quick: bool = False, *, progress: Progress = lambda line: None) -> Calibration:
    """Measure this machine.

    Args:
        quick: a few seconds instead of up to a minute, with fewer samples.
        progress: called with what was measured, part by part.

    Raises:
        SteptimeError: torch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise missing_extra("torch", "torch") from error
    start = time.monotonic()
    machine = look_at_machine()
    cpu = cpu_device(machine)
    cpus = frozenset(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    progress("looking whether the machine is quiet")
    busy = others_busy(cpus)
    gpu_name, gpu = _gpu(torch)
    threads = default_threads(machine)
    isa = {dtype: path for dtype in probe_cpu.DTYPES if (path := _path(cpu, dtype, machine))}
    parts = [
        probe_cpu.matmul(threads=threads, quick=quick, isa=isa),
        probe_cpu.memory(machine, threads=threads, quick=quick),
        probe_cpu.dispatch(quick=quick),
        *([probe_cuda.readings(quick=quick)] if gpu_name else []),
    ]
    with _threads(torch, threads):
        taken = list(_told(itertools.chain.from_iterable(parts), progress))
    checked = [_checked(name, reading, machine, cpu, gpu) for name, reading in taken]
    entries = {name: reading for name, reading in checked if isinstance(reading, Measured)}
    refused = [reading for _, reading in checked if isinstance(reading, Refused)]
    for false in slower_than_memory(entries):
        del entries[false.name]
        refused.append(false)
    entries |= _best_of_sizes(entries)
    return Calibration(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        fingerprint=fingerprint(machine, torch=torch.__version__, threads=threads),
        device=cpu.name,
        gpu=gpu.name if gpu else gpu_name,
        machine=machine,
        torch=torch.__version__,
        threads=threads,
        isa=isa,
        load_average=load,
        others_busy=busy,
        quiet=busy < QUIET_LOAD,
        seconds=time.monotonic() - start,
        entries=entries,
        refused=tuple(refused),
    )


def _told(readings: Iterable[Reading], progress: Progress) -> Iterator[Reading]:
    """The readings as they come, each kind (`matmul.fp32`) told when its first is there."""
    told: set[str] = set()
    for name, reading in readings:
        kind = ".".join(name.split(".")[:2])
        if kind not in told:
            told.add(kind)
            progress(f"measuring {kind}")
        yield name, reading


def _checked(name: str, reading: Measured | Refused, machine: Machine, cpu: Device, gpu: Device | None) -> Reading:
    """The reading, or its refusal when it cannot be true."""
    if isinstance(reading, Refused):
        return name, reading
    why = why_impossible(name, reading, machine, cpu, gpu)
    return name, Refused(name=name, why=why, value=reading.median) if why else reading


def _best_of_sizes(entries: dict[str, Measured]) -> dict[str, Measured]:
    """`matmul.fp32.flops_per_s` from `matmul.fp32.1024.flops_per_s` and its like: the size with the best sample."""
    best: dict[str, Measured] = {}
    for name, measured in entries.items():
        parts = name.split(".")
        sizes = [part for part in parts if part.isdigit()]
        if "matmul" in parts and sizes:
            whole = name.replace(f".{sizes[0]}.", ".", 1)
            if whole not in best or measured.best > best[whole].best:
                best[whole] = measured
    return best


def _path(cpu: Device, dtype: str, machine: Machine) -> str | None:
    path = best_path(cpu, cast(Dtype, dtype), machine.flags)
    return path.name if path else None


def _gpu(torch: Any) -> tuple[str | None, Device | None]:
    """The name that the first GPU gives itself, and its entry in the catalogue."""
    if not torch.cuda.is_available():
        return None, None
    name = torch.cuda.get_device_name(0)
    try:
        return name, find_device(name)
    except SteptimeError:
        return name, None


@contextmanager
def _threads(torch: Any, threads: int) -> Iterator[None]:
    """Run with `threads`, then give the process its own number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
