"""steptime's CPU dropout against torch's, in the same process, alternating.

    python benchmarks/cpu_dropout.py [--quick] [--json FILE]

A run is forward and backward on one tensor; the two sides alternate run by run, so a busy machine slows both. The
figure is the median, its spread the quartiles' distance over the median, the ratio that of the medians (> 1: faster).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from steptime.kernels import dropout as kernel

SHAPES = [(64, 50, 64), (64, 50, 256), (64, 4, 50, 50), (64, 64, 1024)]
CASES = [(shape, torch.float32) for shape in SHAPES] + [((64, 50, 256), torch.bfloat16)]


def interleaved(ours: Callable[[], None], theirs: Callable[[], None], budget_s: float) -> dict[str, float]:
    """Medians in ms of the two, run alternately for `budget_s` seconds; 5 pairs at least."""
    times: tuple[list[float], list[float]] = ([], [])
    for side in (ours, theirs):
        side()
        side()
    end = time.perf_counter() + budget_s
    while time.perf_counter() < end or len(times[0]) < 5:
        for side, spent in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            side()
            spent.append((time.perf_counter() - start) * 1e3)
    medians = [statistics.median(spent) for spent in times]
    quartiles = statistics.quantiles(times[0], n=4)
    return {
        "ours": medians[0],
        "theirs": medians[1],
        "ratio": medians[1] / medians[0],
        "spread": (quartiles[2] - quartiles[0]) / medians[0],
        "runs": len(times[0]),
    }


def report(rows: list[dict[str, object]], path: Path | None) -> None:
    """Prints one line a case and writes the list as JSON where a file was asked for."""
    for row in rows:
        print(
            f"{row['case']:<44} ours {row['ours']:8.3f} ms   {row['peer']} {row['theirs']:8.3f} ms   "
            f"{row['ratio']:5.2f}x   spread {row['spread']:.0%} of {row['runs']} runs"
        )
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=1) + "\n")


def options(description: str | None) -> argparse.Namespace:
    """The two flags that every benchmark takes."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    parser.add_argument("--json", type=Path, help="where the rows go")
    return parser.parse_args()


def main() -> None:
    """Measures every case."""
    arguments = options(__doc__)
    kernel.warm()
    rows: list[dict[str, object]] = []
    threads = torch.get_num_threads()
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        for shape, dtype in CASES:
            x = torch.randn(shape, dtype=dtype, requires_grad=True)
            grad = torch.randn(shape, dtype=dtype)

            def step(dropout: Callable[..., torch.Tensor], x: torch.Tensor = x, grad: torch.Tensor = grad) -> None:
                x.grad = None
                dropout(x, 0.1, True).backward(grad)

            name = f"dropout {'x'.join(map(str, shape))} {str(dtype)[6:]} {count} threads"
            budget_s = (0.8 if arguments.quick else 6.0) * max(1.0, math.prod(shape) / 2e6)
            figures = interleaved(lambda: step(kernel.dropout), lambda: step(torch.dropout), budget_s)
            rows.append({"case": name, "peer": "torch.dropout", "unit": "ms", **figures})
    torch.set_num_threads(threads)
    report(rows, arguments.json)


if __name__ == "__main__":
    main()
