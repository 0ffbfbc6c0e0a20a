"""Achieved FLOP/s and bytes/s against the machine's ceilings, by dtype; MFU; the side of the roofline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steptime.explain.account import IDLE, Account
from steptime.explain.explanation import OpRow, Utilisation
from steptime.explain.flops import RECOMPUTED, bytes_of, dtype_of
from steptime.explain.groups import group_of_op
from steptime.explain.operations import Work, work_of

SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64", "int8": "int8"}
"""Names of dtypes in a Calibration's entries."""


class Ceilings(Protocol):
    """What is asked of a Calibration: the best a step could expect, None when it was not measured."""

    def ceiling(self, name: str) -> float | None:
        """The entry's best sample in its unit."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sum:
    flops: float = 0.0
    model_flops: float = 0.0
    bytes: float = 0.0
    ns: float = 0.0


def utilisation(
    account: Account,
    work: Work,
    ops: tuple[OpRow, ...],
    corrected_share: NDArray[np.float64],
    ceilings: Ceilings | None,
) -> tuple[tuple[Utilisation, ...], float | None]:
    """The rows (arithmetic first, then streaming), most time first, and the step's FLOP time at the ceilings in ns.

    `corrected_share`: corrected over traced time of each piece's cell. The second value is the sum over dtypes of model
    FLOPs / ceiling: divided by the step time it is the MFU. None when a ceiling or every formula is missing.
    """
    prefix = "cuda." if account.has_device else ""
    rows = []
    ideal_ns: float | None = 0.0
    for dtype, total in sorted(_arithmetic(account, work, corrected_share).items(), key=lambda item: -item[1].ns):
        row = _row("arithmetic", dtype, total, ceilings, prefix)
        rows.append(row)
        if row.ceiling_flops_per_s and ideal_ns is not None:
            ideal_ns += total.model_flops / row.ceiling_flops_per_s * 1e9
        else:
            ideal_ns = None
    for dtype, total in sorted(_streaming(ops).items(), key=lambda item: -item[1].ns):
        rows.append(_row("streaming", dtype, total, ceilings, prefix))
    return tuple(rows), ideal_ns or None


def _arithmetic(account: Account, work: Work, corrected_share: NDArray[np.float64]) -> dict[str, _Sum]:
    """FLOPs, bytes and time per step of the ops with a FLOP formula, the ops that they call included."""
    t, steps = account.timeline, max(1, len(account.windows))
    busy = np.flatnonzero((account.segments.owner >= 0) & (account.resource != IDLE))
    roots = work.counted[work_of(account)[account.segments.owner[busy]]]
    inside = roots >= 0
    ns = account.segments.duration_ns[busy][inside] * corrected_share[busy][inside]
    roots = roots[inside]
    sums: dict[str, list[float]] = {}
    for root, time_ns in zip(*_grouped(roots, ns), strict=True):
        inputs = work.inputs(root)
        name = t.text(root)
        total = sums.setdefault(dtype_of(inputs) if inputs else "", [0.0, 0.0, 0.0, 0.0])
        flops = float(work.flops[root])
        moved = bytes_of(name, group_of_op(name), inputs)
        total[0] += flops / steps
        total[1] += flops * (1 - RECOMPUTED.get(name, 0.0)) / steps
        total[2] += (moved or 0) / steps
        total[3] += time_ns / steps
    return {
        dtype: _Sum(flops=flops, model_flops=model, bytes=moved, ns=time_ns)
        for dtype, (flops, model, moved, time_ns) in sums.items()
    }


def _grouped(keys: NDArray[np.int64], values: NDArray[np.float64]) -> tuple[list[int], list[float]]:
    unique, inverse = np.unique(keys, return_inverse=True)
    return unique.tolist(), np.bincount(inverse, weights=values, minlength=len(unique)).tolist()


def _streaming(ops: tuple[OpRow, ...]) -> dict[str, _Sum]:
    """Bytes and time of compute ops that have bytes but no FLOPs."""
    sums: dict[str, list[float]] = {}
    for op in ops:
        if op.flops is None and op.bytes and op.resource == "compute" and op.dtype:
            total = sums.setdefault(op.dtype, [0.0, 0.0])
            total[0] += op.bytes
            total[1] += op.self_ns
    return {dtype: _Sum(bytes=moved, ns=time_ns) for dtype, (moved, time_ns) in sums.items()}


def _row(kind: str, dtype: str, total: _Sum, ceilings: Ceilings | None, prefix: str) -> Utilisation:
    short = SHORT.get(dtype)
    peak = ceilings.ceiling(f"{prefix}matmul.{short}.flops_per_s") if ceilings and short and total.flops else None
    bandwidth = ceilings.ceiling(f"{prefix}memory.triad.bytes_per_s") if ceilings else None
    seconds = total.ns / 1e9
    intensity = total.flops / total.bytes if total.bytes else 0.0
    ridge = peak / bandwidth if peak and bandwidth else None
    return Utilisation(
        work=kind,
        dtype=dtype,
        flops=round(total.flops),
        bytes=round(total.bytes),
        compute_ns=round(total.ns),
        achieved_flops_per_s=total.flops / seconds if seconds else 0.0,
        achieved_bytes_per_s=total.bytes / seconds if seconds else 0.0,
        ceiling_flops_per_s=peak,
        ceiling_bytes_per_s=bandwidth,
        intensity=intensity,
        ridge=ridge,
        side=None if ridge is None else "compute" if intensity >= ridge else "memory",
    )
