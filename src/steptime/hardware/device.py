"""What a processor can do by its maker's word: every number stands beside its source, or is null; none is guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8"]
DeviceKind = Literal["cpu", "gpu"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(_Frozen):
    """A number of a datasheet, in SI base units (flop/s, bytes, bytes/s, seconds, hertz, watts)."""

    value: Annotated[float, Field(gt=0)]
    source: str
    """Where it is written."""
    date: str
    """When it was entered here, ISO 8601."""


class IsaPath(_Frozen):
    """One way a CPU core computes: what a cycle of it yields when `flags` are all in /proc/cpuinfo."""

    name: str
    flags: tuple[str, ...]
    flops_per_cycle: Mapping[Dtype, Figure]
    """Per core; a fused multiply-add counts as two. int8: operations, not flops."""


class Identity(_Frozen):
    """How the device names itself."""

    names: tuple[str, ...] = ()
    """Names that CUDA or HIP report, compared whole and without regard to case."""
    cpu_vendor: str | None = None
    cpu_family: int | None = None
    cpu_models: tuple[int, ...] = ()
    architecture: str | None = None
    """For a generic entry: `platform.machine()` of CPUs that no other entry describes."""


class Device(_Frozen):
    """A processor type. For a CPU the numbers are those of one socket."""

    name: str
    kind: DeviceKind
    vendor: str
    identity: Identity
    peak_flops_per_s: Mapping[Dtype, Figure] = {}
    """Dense, of the whole GPU, matrix units included; empty for a CPU: see the function `peak_flops_per_s`."""
    paths: tuple[IsaPath, ...] = ()
    max_clock_hz: Figure | None = None
    """The highest boost clock, of a CPU that of any part of the family: a bound, not what a loaded machine sustains."""
    units: Figure | None = None
    """Streaming multiprocessors or compute units."""
    memory_bytes: Figure | None = None
    """As it is sold, a GB taken as 1e9: makers mean GiB, or nearly, so a driver reports up to 7% more."""
    memory_bandwidth_bytes_per_s: Figure | None = None
    cache_bytes: Mapping[Literal["l1d", "l2", "l3"], Figure] = {}
    """CPU: l1d and l2 of a core, l3 of a core complex or socket. GPU: l2 of the whole device, l3 its last level."""
    scale_up_bytes_per_s: Figure | None = None
    """Links to the other GPUs of a node, both directions together."""
    launch_latency_s: Figure | None = None
    """Between two kernels of a stream, back to back."""
    power_w: Figure | None = None


def best_path(device: Device, dtype: Dtype, flags: frozenset[str]) -> IsaPath | None:
    """The path of a CPU that yields most for `dtype` among those that `flags` allow; None when none is known to."""
    able = [path for path in device.paths if dtype in path.flops_per_cycle and flags.issuperset(path.flags)]
    return max(able, key=lambda path: path.flops_per_cycle[dtype].value, default=None)


def peak_flops_per_s(
    device: Device,
    dtype: Dtype,
    *,
    cores: float = 1.0,
    flags: frozenset[str] = frozenset(),
    clock_hz: float | None = None,
) -> float | None:
    """The dense peak in flop/s; None where the catalogue has no figure for it.

    GPU: the datasheet's. CPU: cores x flops a cycle x clock.

    Args:
        device: from the catalogue.
        dtype: of the operands.
        cores: physical cores at hand (CPU only).
        flags: of the CPU.
        clock_hz: None for the family's highest boost, which makes the result a bound.
    """
    if device.kind == "gpu":
        figure = device.peak_flops_per_s.get(dtype)
        return None if figure is None else figure.value
    path = best_path(device, dtype, flags)
    clock = clock_hz if clock_hz is not None else device.max_clock_hz and device.max_clock_hz.value
    return None if path is None or clock is None else cores * path.flops_per_cycle[dtype].value * clock
