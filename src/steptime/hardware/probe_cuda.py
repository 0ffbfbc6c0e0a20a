"""The GPU's readings, by CUDA events. Written against the documentation; not yet run on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from steptime.hardware.calibration import Measured, Refused

SIZES = (256, 1024, 8192)
FOOTPRINT_BYTES = 2 * 2**30
"""Several times the last-level cache of every GPU in the catalogue."""


def readings(*, quick: bool) -> Iterator[tuple[str, Measured | Refused]]:
    """Matmul by dtype and size, copy and triad in memory, and the time between two launches, on the first GPU."""
    import torch

    device = torch.device("cuda", 0)
    repeats = 5 if quick else 20
    precision = torch.get_float32_matmul_precision()
    for dtype, kind, setting in (
        ("fp32", torch.float32, "highest"),
        ("tf32", torch.float32, "high"),
        ("bf16", torch.bfloat16, "high"),
        ("fp16", torch.float16, "high"),
    ):
        torch.set_float32_matmul_precision(setting)
        for size in SIZES:
            name = f"cuda.matmul.{dtype}.{size}.flops_per_s"
            a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
            out = torch.empty_like(a)
            seconds = _event_seconds(torch, lambda a=a, b=b, out=out: torch.mm(a, b, out=out), repeats)
            yield (
                name,
                Measured.of(
                    [2 * size**3 / second for second in seconds], unit="flop/s", method=f"torch.mm {size}, CUDA events"
                ),
            )
    torch.set_float32_matmul_precision(precision)
    free, _ = torch.cuda.mem_get_info(device)
    for kind, streams in (("copy", 2), ("triad", 3)):
        length = min(FOOTPRINT_BYTES, free // 4) // (4 * streams)
        arrays = [torch.ones(length, device=device) for _ in range(streams)]
        call: Callable[[], object] = (
            (lambda arrays=arrays: arrays[0].copy_(arrays[1]))
            if kind == "copy"
            else (lambda arrays=arrays: torch.add(arrays[1], arrays[2], alpha=3.0, out=arrays[0]))
        )
        seconds = _event_seconds(torch, call, repeats)
        yield (
            f"cuda.memory.{kind}.bytes_per_s",
            Measured.of(
                [4 * streams * length / second for second in seconds],
                unit="byte/s",
                method=f"{4 * streams * length / 1e9:.3g} GB float32, CUDA events",
            ),
        )
        del arrays
    x = torch.ones(1, device=device)
    launches = 1000
    seconds = _event_seconds(torch, lambda: [x.add_(1) for _ in range(launches)], repeats)
    yield (
        "cuda.launch_s",
        Measured.of([second / launches for second in seconds], unit="s", method=f"{launches} adds of one element"),
    )


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
    return [begin.elapsed_time(end) / 1e3 for begin, end in pairs]
