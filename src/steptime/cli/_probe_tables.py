"""How `steptime probe` looks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from steptime.hardware import Calibration, Measured

_SCALES = {"flop/s": (1e9, "GFLOP/s"), "op/s": (1e9, "Gop/s"), "byte/s": (1e9, "GB/s"), "s": (1e-6, "us")}


def print_calibration(console: Console, found: Calibration) -> None:
    """What was measured, what was refused, and whether to trust it."""
    machine = found.machine
    lines = [
        f"{found.device} ({machine.cpu_name or machine.architecture}), {machine.cores_at_hand:g} cores at hand, "
        f"{found.threads} threads, torch {found.torch}",
        *(f"{dtype} is computed by {path}" for dtype, path in found.isa.items()),
    ]
    table = Table(box=None, pad_edge=False)
    for column in ("measured", "best", "median", "P10", "P90", ""):
        table.add_column(column, justify="right" if column not in ("measured", "") else "left", overflow="fold")
    for name, entry in found.entries.items():
        # A dtype's own row is the best of its sizes; the sizes are in the JSON.
        if not any(part.isdigit() for part in name.split(".")):
            table.add_row(name.rpartition(".")[0] if entry.unit != "s" else name, *_scaled(entry))
    console.print("\n".join(lines), highlight=False)
    console.print(table)
    for refused in found.refused:
        console.print(f"no {refused.name}: {refused.why}", highlight=False)
    if not found.quiet:
        console.print(
            f"others kept {found.others_busy:.0%} of the CPUs busy: medians are what was left; probe again when quiet",
            highlight=False,
        )


def _scaled(entry: Measured) -> tuple[str, str, str, str, str]:
    scale, unit = _SCALES.get(entry.unit, (1.0, entry.unit))
    best, median, low, high = (f"{value / scale:.4g}" for value in (entry.best, entry.median, entry.low, entry.high))
    return best, median, low, high, unit
