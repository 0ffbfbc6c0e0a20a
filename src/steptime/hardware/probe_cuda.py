"""The GPU's readings, by CUDA events. Written against the documentation; not yet run on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from steptime.hardware.calibration import Measured, Reading
from steptime.hardware.probe_cpu import MOVES

SIZES = (256, 1024, 8192)
"""Edges of the square matrices."""
FOOTPRINT_BYTES = 2 * 2**30
"""Several times the last-level cache of every GPU in the catalogue."""
LAUNCHES = 1000
_MATMULS = (
    ("fp32", "float32", "highest"),
    ("tf32", "float32", "high"),
    ("bf16", "bfloat16", "high"),
    ("fp16", "float16", "high"),
)
"""Name in the Calibration, torch's dtype, and the float32 matmul precision that selects the units."""


def readings(*, quick: bool) -> Iterator[Reading]:
    """Matmul by dtype and size, copy and triad in memory, and the time between two launches, on the first GPU."""
    import torch

    device = torch.device("cuda", 0)
    repeats = 5 if quick else 20
    precision = torch.get_float32_matmul_precision()
    try:
        yield from _matmul(torch, device, repeats)
    finally:
        torch.set_float32_matmul_precision(precision)
    yield from _memory(torch, device, repeats)
    x = torch.ones(1, device=device)
    seconds = _event_seconds(torch, lambda: [x.add_(1) for _ in range(LAUNCHES)], repeats)
    each = [second / LAUNCHES for second in seconds]
    yield "cuda.launch_s", Measured.of(each, unit="s", method=f"{LAUNCHES} adds of one element, CUDA events")


def _matmul(torch: Any, device: Any, repeats: int) -> Iterator[Reading]:
    for dtype, kind, precision in _MATMULS:
        torch.set_float32_matmul_precision(precision)
        for size in SIZES:
            a, b = (torch.randn(size, size, device=device, dtype=getattr(torch, kind)) for _ in range(2))
            out = torch.empty_like(a)
            seconds = _event_seconds(torch, lambda a=a, b=b, out=out: torch.mm(a, b, out=out), repeats)
            rates = [2 * size**3 / second for second in seconds]
            method = f"torch.mm {size}x{size}x{size}, CUDA events"
            yield f"cuda.matmul.{dtype}.{size}.flops_per_s", Measured.of(rates, unit="flop/s", method=method)


def _memory(torch: Any, device: Any, repeats: int) -> Iterator[Reading]:
    free, _ = torch.cuda.mem_get_info(device)
    for kind, streams in (("copy", 2), ("triad", 3)):
        length = min(FOOTPRINT_BYTES, free // 4) // (4 * streams)
        arrays = [torch.ones(length, device=device) for _ in range(streams)]
        seconds = _event_seconds(torch, MOVES[kind](torch, arrays), repeats)
        moved = 4 * streams * length
        method = f"torch {kind} of {moved / 1e9:.3g} GB float32, CUDA events"
        rates = [moved / second for second in seconds]
        del arrays
        yield f"cuda.memory.{kind}.bytes_per_s", Measured.of(rates, unit="byte/s", method=method)


def _event_seconds(torch: Any, call: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each call on the stream, after three that warm up clocks and caches."""
    for _ in range(3):
        call()
    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for begin, end in pairs:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]  # elapsed_time is in milliseconds
