"""Refuses impossible readings: above what the silicon can do, or below what anything does, the probe was at fault."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from steptime.hardware.calibration import Measured, Refused
from steptime.hardware.device import Device, Dtype, peak_flops_per_s
from steptime.hardware.machine import Machine

SLACK = 1.05
"""Datasheets round, and clocks drift, by a few percent."""

FASTEST_CLOCK_HZ = 6.5e9
"""Above every boost clock that has been sold (the highest is 6.2 GHz): the bound where the catalogue has none."""

L1_BYTES_PER_CYCLE = 192
"""Two 512-bit loads and one 512-bit store: no core of the catalogue moves more, so no cache can deliver more."""

_FLOORS = {"flops_per_s": 1e6, "bytes_per_s": 1e7}
_SHORTEST_S = {"dispatch": 20e-9, "cuda": 200e-9}


def why_impossible(name: str, measured: Measured, machine: Machine, cpu: Device, gpu: Device | None) -> str | None:
    """What is wrong with a reading; None when it can be true.

    A rate for which neither catalogue nor physics has a bound passes.
    """
    for value in (measured.median, measured.best):
        if not (math.isfinite(value) and value > 0):
            return f"{value} is not a positive number"
    parts = name.split(".")
    quantity = parts[-1]
    if quantity.endswith("_s") and quantity not in _FLOORS:
        shortest = _SHORTEST_S.get(parts[0], 0.0)
        return f"shorter than {shortest:g} s, which no call can be" if measured.best < shortest else None
    if measured.median < _FLOORS[quantity]:
        return f"below {_FLOORS[quantity]:g} {measured.unit}, slower than any machine that runs torch"
    bound = _bound(parts, machine, cpu, gpu)
    if bound is not None and measured.best > bound * SLACK:
        return f"above the {bound:.4g} {measured.unit} that the device can do at most"
    return None


def slower_than_memory(entries: Mapping[str, Measured]) -> list[Refused]:
    """The cache readings that stay below memory's own: threads waited for each other, as on a busy machine."""
    found: list[Refused] = []
    for name, measured in entries.items():
        if not name.startswith("cache."):
            continue
        memory = entries.get("memory." + name.split(".", 2)[2])
        if memory is not None and measured.best < memory.best:
            why = f"below the {memory.best:.4g} {memory.unit} of memory: its threads were kept waiting"
            found.append(Refused(name=name, why=why, value=measured.best))
    return found


def _bound(parts: list[str], machine: Machine, cpu: Device, gpu: Device | None) -> float | None:
    on_gpu = parts[0] == "cuda"
    kind, *rest = parts[1:] if on_gpu else parts
    device = gpu if on_gpu else cpu
    cores = 1.0 if "threads1" in parts else machine.cores_at_hand
    clock = cpu.max_clock_hz.value if cpu.max_clock_hz else FASTEST_CLOCK_HZ
    if device is None:
        return None
    if kind == "matmul":
        dtype = cast(Dtype, rest[0])
        return peak_flops_per_s(device, dtype, cores=cores, flags=machine.flags, clock_hz=clock)
    if kind == "memory":
        figure = device.memory_bandwidth_bytes_per_s
        return None if figure is None else figure.value
    if kind == "cache" and not on_gpu:
        return cores * L1_BYTES_PER_CYCLE * clock
    return None
