"""The CPU's readings: matmul by dtype, size and threads; memory and caches; what an op costs before it computes."""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from steptime.hardware.calibration import Measured, Reading, Refused
from steptime.hardware.machine import Machine
from steptime.hardware.timing import sample_seconds

DTYPES = ("fp32", "bf16", "fp16", "int8")
SIZES = (64, 256, 1024)
"""Edges of the square matrices."""
LONGEST_CALL_S = 1.0
"""A matmul that would take longer is not run: a dtype without hardware of its own takes seconds at 1024."""


def matmul(*, threads: int, quick: bool, isa: dict[str, str]) -> Iterator[Reading]:
    """Square matmuls of each dtype, on all threads and on one.

    `isa` gains the kernel that oneDNN names for a dtype: flags say what a CPU can do, the kernel what torch does.
    """
    import torch

    budget = 0.1 if quick else 0.4
    for dtype in DTYPES:
        multiply = _multiply(torch, dtype)
        kernel = onednn_kernel(lambda multiply=multiply: multiply(64)())
        if kernel:
            isa[dtype] = f"{isa[dtype]} ({kernel})" if dtype in isa else kernel
        for used in dict.fromkeys((threads, 1)):
            torch.set_num_threads(used)
            suffix = ".threads1" if used == 1 and threads != 1 else ""
            rate = 0.0
            for size in SIZES:
                name = f"matmul.{dtype}.{size}{suffix}.flops_per_s"
                flops = 2 * size**3
                if rate and flops / rate > LONGEST_CALL_S:
                    why = f"not taken: one call would take about {flops / rate:.1f} s"
                    yield name, Refused(name=name, why=why)
                    continue
                try:
                    seconds = sample_seconds(multiply(size), budget_s=budget)
                except (RuntimeError, NotImplementedError, AttributeError) as error:
                    yield name, Refused(name=name, why=f"torch has no such matmul: {str(error).splitlines()[0]}")
                    break
                measured = Measured.of(
                    [flops / second for second in seconds],
                    unit="op/s" if dtype == "int8" else "flop/s",
                    method=f"torch matmul {size}x{size}x{size}, {used} threads",
                )
                rate = measured.best  # others may hold up most samples; that must not call off the larger sizes
                yield name, measured
        torch.set_num_threads(threads)


def _multiply(torch: Any, dtype: str) -> Callable[[int], Callable[[], object]]:
    """For a size, a call that multiplies two square matrices of `dtype`."""
    if dtype == "int8":

        def integers(size: int) -> Callable[[], object]:
            a = torch.randint(-8, 8, (size, size), dtype=torch.int8)
            b = torch.randint(-8, 8, (size, size), dtype=torch.int8)
            return lambda: torch._int_mm(a, b)  # the only int8 matmul torch has; int32 result

        return integers
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]

    def floats(size: int) -> Callable[[], object]:
        a, b = (torch.randn(size, size).to(kind) for _ in range(2))
        out = torch.empty(size, size, dtype=kind)
        return lambda: torch.mm(a, b, out=out)

    return floats


def memory(machine: Machine, *, threads: int, quick: bool) -> Iterator[Reading]:
    """Copy (two streams) and triad `a = b + s * c` (three streams) at footprints of memory, L3 and L2."""
    import torch

    budget = 0.15 if quick else 0.6
    cores = max(1, int(machine.cores_at_hand))
    l2, l3 = machine.cache_bytes.get("l2"), machine.cache_bytes.get("l3")
    beyond = _footprint_beyond_caches(machine)
    places = [("memory", beyond, threads), ("memory", beyond, 1)]
    if l3:
        places.append(("cache.l3", l3 // 2, threads))
    if l2:
        # A half leaves room for the stack and the other streams; L2 is a core's own, so all cores' count.
        places += [("cache.l2", l2 * cores // 2, threads), ("cache.l2", l2 // 2, 1)]
    for place, footprint, used in dict.fromkeys(places):
        suffix = ".threads1" if used == 1 and threads != 1 else ""
        torch.set_num_threads(used)
        for kind, streams in (("copy", 2), ("triad", 3)):
            name = f"{place}.{kind}{suffix}.bytes_per_s"
            length = footprint // (4 * streams)
            arrays = [torch.ones(length) for _ in range(streams)]
            seconds = sample_seconds(MOVES[kind](torch, arrays), budget_s=budget)
            measured = Measured.of(
                [4 * streams * length / second for second in seconds],
                unit="byte/s",
                method=f"torch {kind} of {4 * streams * length / 1e6:.3g} MB float32, {used} threads",
            )
            del arrays
            yield name, measured
    torch.set_num_threads(threads)


MOVES: dict[str, Callable[[Any, list[Any]], Callable[[], object]]] = {
    "copy": lambda torch, arrays: lambda: arrays[0].copy_(arrays[1]),
    "triad": lambda torch, arrays: lambda: torch.add(arrays[1], arrays[2], alpha=3.0, out=arrays[0]),
}
"""For torch and as many equal arrays as it has streams, the call that moves them."""


def _footprint_beyond_caches(machine: Machine) -> int:
    """Bytes that no cache holds: four times the L3 (STREAM's rule), within a quarter of the memory and 2 GiB."""
    wanted = max(256 * 2**20, 4 * machine.cache_bytes.get("l3", 0))
    return min(wanted, (machine.memory_bytes or 2**32) // 4, 2 * 2**30)


def dispatch(*, quick: bool) -> Iterator[Reading]:
    """Seconds that an op of one element takes: what torch, not the processor, needs for a call."""
    import torch

    budget = 0.1 if quick else 0.4
    chain = 200
    x = torch.ones(1)
    with torch.no_grad():
        yield "dispatch.op_s", _seconds(lambda: torch.add(x, x), budget, "torch.add of one element, no_grad")
    leaf = torch.ones(1, requires_grad=True)
    recorded = _seconds(lambda: torch.add(leaf, x), budget, "torch.add of one element, recorded by autograd")
    yield "dispatch.autograd_forward_op_s", recorded

    def forward() -> Any:
        y = leaf
        for _ in range(chain):
            y = torch.add(y, x)
        return y

    both = sample_seconds(lambda: forward().backward(), budget_s=budget)
    forward_s = statistics.median(sample_seconds(forward, budget_s=budget))
    yield (
        "dispatch.autograd_backward_op_s",
        Measured.of(
            [(second - forward_s) / chain for second in both],
            unit="s",
            method=f"forward and backward of a chain of {chain} adds of one element, less its forward alone",
        ),
    )


def _seconds(call: Callable[[], object], budget_s: float, method: str) -> Measured:
    return Measured.of(sample_seconds(call, budget_s=budget_s), unit="s", method=method)


def onednn_kernel(call: Callable[[], object]) -> str | None:
    """The kernel that oneDNN says it ran, e.g. "brg_matmul:avx10_1_512_amx"; None when it ran none (MKL did).

    oneDNN prints from C to file descriptor 1, so that is turned to a file for the time of the call.
    """
    import torch

    verbose = getattr(getattr(torch.backends, "mkldnn", None), "verbose", None)
    if verbose is None or not torch.backends.mkldnn.is_available():
        return None
    with tempfile.NamedTemporaryFile(prefix="steptime-onednn-") as file:
        sys.stdout.flush()
        kept = os.dup(1)
        try:
            os.dup2(file.fileno(), 1)
            with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError), verbose(1):
                call()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        text = Path(file.name).read_text(errors="replace")
    found = re.search(r"primitive,exec,cpu,\w+,([\w:]+)", text)
    return found[1] if found else None
