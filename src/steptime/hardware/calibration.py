"""What one machine was measured to do: a Calibration overlays the catalogue's figures and carries its uncertainty."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from steptime.errors import SteptimeError
from steptime.hardware.catalog import cpu_device
from steptime.hardware.machine import Machine, look_at_machine
from steptime.ledger import Ledger, steptime_home, write_whole

QUIET_LOAD = 0.3
"""A machine counts as quiet when the others kept less than this share of its CPUs busy."""


class Measured(BaseModel):
    """One measured quantity: median of `n` samples, their 10th and 90th percentiles as `low` and `high`, and the best.

    The best (the highest rate, the shortest time) is what the machine can do: others on it only ever take away.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    median: float
    low: float
    high: float
    best: float
    unit: str
    n: int
    method: str

    @classmethod
    def of(cls, samples: Sequence[float], *, unit: str, method: str) -> Measured:
        """Summarise samples, at least one."""
        low, median, high = (float(at) for at in np.percentile(np.asarray(samples, dtype=np.float64), [10, 50, 90]))
        best = float(min(samples) if unit == "s" else max(samples))
        return cls(median=median, low=low, high=high, best=best, unit=unit, n=len(samples), method=method)


class Refused(BaseModel):
    """A reading that was dropped or not taken, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    why: str
    value: float | None = None


Reading: TypeAlias = tuple[str, Measured | Refused]
"""What a part of the probe yields: a name as `Calibration` lists them, and what came of it."""


class Calibration(BaseModel):
    """What was measured on one machine, under one version of torch.

    Names of `entries`: `matmul.<dtype>[.<n>][.threads1].flops_per_s` (without `<n>`: the best size; without `threads1`:
    all threads), `memory.<copy|triad>[.threads1].bytes_per_s`, `cache.<l2|l3>.triad.bytes_per_s`, `dispatch.op_s`,
    `dispatch.autograd_forward_op_s`, `dispatch.autograd_backward_op_s`, and the GPU's under `cuda.`. Rates are flop/s
    (int8: operations/s) and bytes/s, times are seconds. Bytes are counted as STREAM counts them: what is read plus what
    is written, without the write-allocate reads of the caches.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    created: str
    """ISO 8601, UTC."""
    fingerprint: str
    device: str
    """Catalogue name of the CPU."""
    gpu: str | None = None
    """Catalogue name of the GPU that the `cuda.` entries were measured on, or the name it gives itself."""
    machine: Machine
    torch: str
    threads: int
    isa: Mapping[str, str] = {}
    """dtype -> what computes it here: the CPU's path by its flags, the kernel that oneDNN named; absent: neither."""
    load_average: float
    """Of the last minute, before the probe."""
    others_busy: float
    """Share of the CPUs at hand that others kept busy just before the probe, 0 to 1."""
    quiet: bool
    """Whether others left the machine alone; else medians are what was left, not what the machine can do."""
    seconds: float
    """What the probe took."""
    entries: Mapping[str, Measured]
    refused: tuple[Refused, ...] = ()

    def median(self, name: str) -> float | None:
        """The median of an entry; None when it was not measured."""
        entry = self.entries.get(name)
        return None if entry is None else entry.median

    def ceiling(self, name: str) -> float | None:
        """The best sample of an entry, which a step cannot be expected to beat; None when it was not measured.

        A rate of all threads is at least that of one: on a busy machine several threads wait for each other.
        """
        entry = self.entries.get(name)
        if entry is None or entry.unit == "s":
            return None if entry is None else entry.best
        body, _, quantity = name.rpartition(".")
        alone = self.entries.get(f"{body}.threads1.{quantity}")
        return entry.best if alone is None else max(entry.best, alone.best)


def fingerprint(machine: Machine, *, torch: str | None = None, threads: int | None = None) -> str:
    """What a Calibration is keyed by: device, cores at hand, version of torch, threads, power cap, GPUs.

    Args:
        machine: from `look_at_machine`.
        torch: None for the version installed here.
        threads: None for what torch starts with here: `OMP_NUM_THREADS`, else one a core at hand.
    """
    device = cpu_device(machine).name.replace(" ", "-")
    version = torch or torch_version() or "none"
    cap = "none" if machine.power_cap_w is None else f"{machine.power_cap_w:g}W"
    used = default_threads(machine) if threads is None else threads
    gpus = f"_gpus-{len(machine.gpus)}x{machine.gpus[0].replace(' ', '-')}" if machine.gpus else ""
    return f"{device}_cores-{machine.cores_at_hand:g}_torch-{version}_threads-{used}_cap-{cap}{gpus}"


def torch_version() -> str | None:
    """The version of torch installed here, without importing it."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def default_threads(machine: Machine) -> int:
    """The threads that torch starts with on `machine`."""
    named = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(named) if named.isdigit() and int(named) > 0 else machine.cores


def save_calibration(calibration: Calibration, *, ledger: Ledger | None = None, run_id: str | None = None) -> Path:
    """Keep a calibration as JSON under the steptime home, and in the ledger when one is given.

    Raises:
        SteptimeError: it cannot be written.
    """
    stamp = calibration.created.replace(":", "").replace("-", "")
    path = _folder() / f"{calibration.fingerprint}_{stamp}.json"
    write_whole(path, calibration.model_dump_json(indent=1).encode())
    if ledger is not None:
        ledger.add_probe(calibration.model_dump(mode="json"), run_id=run_id)
    return path


def load_calibration(key: str | None = None) -> Calibration | None:
    """The newest calibration of this machine; None when it was never measured as it is now.

    A quiet one is preferred to a newer that was disturbed.

    Args:
        key: another machine's `fingerprint`; None for this machine's.
    """
    wanted = fingerprint(look_at_machine()) if key is None else key
    found = [calibration for calibration in _all() if calibration.fingerprint == wanted]
    return max(found, key=lambda calibration: (calibration.quiet, calibration.created), default=None)


def read_calibration(path: Path) -> Calibration:
    """Read one file.

    Raises:
        SteptimeError: it cannot be read, or a newer steptime wrote it.
    """
    try:
        return Calibration.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SteptimeError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        what = f"is no calibration of this version ({'.'.join(map(str, first['loc']))}: {first['msg']})"
        raise SteptimeError(what, where=str(path), mend="measure again: steptime probe") from error


def _all() -> list[Calibration]:
    found: list[Calibration] = []
    for path in sorted(_folder().glob("*.json")):
        try:
            found.append(read_calibration(path))
        except SteptimeError:
            # One from another version, or cut short by hand: the machine can be measured again, so it is passed over.
            continue
    return found


def _folder() -> Path:
    return steptime_home() / "calibrations"
