"""The machine at hand, read from /proc and /sys: its CPU, and how much of it this process may use."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

CacheLevel = Literal["l1d", "l2", "l3"]


class Machine(BaseModel):
    """What this process finds. In a container or a virtual machine that may be less than the hardware, or other."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: str
    cpu_vendor: str | None
    cpu_family: int | None
    cpu_model: int | None
    cpu_name: str | None
    """May be cut short by a hypervisor ("AMD EPYC")."""
    flags: frozenset[str]
    threads: int
    """Logical CPUs in the affinity mask."""
    cores: int
    """Physical cores behind them; equal to `threads` where the topology is not told."""
    cpu_quota: float | None
    """CPUs that the cgroups allow on average; None: no limit."""
    clock_hz: float | None
    """The highest clock that cpufreq names; without cpufreq the nominal one of /proc/cpuinfo, and boost is unknown."""
    cache_bytes: Mapping[CacheLevel, int]
    """Of the first CPU at hand: one core's l1d and l2, and the l3 that it shares."""
    memory_bytes: int | None
    virtual: bool
    """The CPU says that a hypervisor runs below."""
    power_cap_w: float | None
    """Of the CPU packages together, by RAPL."""
    gpus: tuple[str, ...] = ()
    """Names of the NVIDIA GPUs that the driver lists, whether this process may use them or not."""

    @property
    def cores_at_hand(self) -> float:
        """Physical cores that this process can keep busy: the affinity mask's, or less by the cgroups' quota."""
        return float(self.cores) if self.cpu_quota is None else min(float(self.cores), self.cpu_quota)


def look_at_machine(root: Path = Path("/"), *, affinity: Set[int] | None = None) -> Machine:
    """Read the machine.

    Args:
        root: the folder that holds `proc` and `sys`.
        affinity: the CPUs at hand; None for this process's.
    """
    cpus = frozenset(os.sched_getaffinity(0) if affinity is None else affinity)
    facts = _first_facts(_read(root / "proc/cpuinfo") or "")
    flags = frozenset((facts.get("flags") or facts.get("Features") or "").split())
    system = root / "sys/devices/system/cpu"
    return Machine(
        architecture=platform.machine(),
        cpu_vendor=facts.get("vendor_id") or facts.get("CPU implementer"),
        cpu_family=_integer(facts.get("cpu family")),
        cpu_model=_integer(facts.get("model")),
        cpu_name=facts.get("model name"),
        flags=flags,
        threads=len(cpus),
        cores=_physical_cores(system, cpus),
        cpu_quota=cpu_quota(root),
        clock_hz=_clock_hz(system, min(cpus), facts),
        cache_bytes=_caches(system / f"cpu{min(cpus)}/cache"),
        memory_bytes=_memory_bytes(root),
        virtual="hypervisor" in flags,
        power_cap_w=_power_cap_w(root / "sys/class/powercap"),
        gpus=_gpus(root / "proc/driver/nvidia/gpus"),
    )


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The tightest CPU limit of the cgroups (v2 `cpu.max`, v1 `cpu.cfs_quota_us`) around this process, in CPUs."""
    limits: list[float] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        unified = number == "0" and not controllers
        if not unified and "cpu" not in controllers.split(","):
            continue
        # A container often sees its own group as the root of the mount: then only the mount's top can be read.
        top = root / "sys/fs/cgroup" / ("" if unified else controllers)
        group = Path(path.lstrip("/"))
        for folder in (top / group, *(top / parent for parent in group.parents)):
            if unified:
                quota, period = (*(_read(folder / "cpu.max") or "").split(), "", "")[:2]
            else:
                quota, period = (_read(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
            allowed, every = _integer(quota), _integer(period)
            if allowed and every and allowed > 0:
                limits.append(allowed / every)
    return min(limits, default=None)


def _first_facts(text: str) -> dict[str, str]:
    """The `name: value` lines of a file of /proc up to the first line that is none: of cpuinfo, the first processor."""
    facts: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if not colon and facts:
            break
        facts[name.strip()] = value.strip()
    return facts


def _physical_cores(system: Path, cpus: Set[int]) -> int:
    siblings = [_read(system / f"cpu{cpu}/topology/thread_siblings_list") for cpu in sorted(cpus)]
    return len(cpus) if None in siblings else len(set(siblings))


def _clock_hz(system: Path, cpu: int, facts: Mapping[str, str]) -> float | None:
    khz = _integer(_read(system / f"cpu{cpu}/cpufreq/cpuinfo_max_freq"))
    if khz:
        return khz * 1e3
    try:
        return float(facts["cpu MHz"]) * 1e6
    except (KeyError, ValueError):
        return None


def _caches(folder: Path) -> dict[CacheLevel, int]:
    names: dict[tuple[str, str], CacheLevel] = {
        ("1", "Data"): "l1d", ("2", "Unified"): "l2", ("3", "Unified"): "l3"
    }  # fmt: skip
    found: dict[CacheLevel, int] = {}
    for index in sorted(folder.glob("index*")):
        level = names.get((_read(index / "level") or "", _read(index / "type") or ""))
        size = _read(index / "size") or ""
        kib = _integer(size.removesuffix("K"))
        if level and kib:
            found[level] = kib * 1024
    return found


def _memory_bytes(root: Path) -> int | None:
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def _power_cap_w(folder: Path) -> float | None:
    """The long-term limit of all packages together, where RAPL is readable."""
    caps = [
        _integer(_read(zone / "constraint_0_power_limit_uw"))
        for zone in sorted(folder.glob("intel-rapl:[0-9]*"))
        if zone.name.count(":") == 1
    ]
    known = [cap for cap in caps if cap]
    return sum(known) / 1e6 if known and len(known) == len(caps) else None


def _gpus(folder: Path) -> tuple[str, ...]:
    """From the driver's own files: asking CUDA would load torch and hold the GPU."""
    models = [_first_facts(_read(path) or "").get("Model") for path in sorted(folder.glob("*/information"))]
    return tuple(model for model in models if model)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
