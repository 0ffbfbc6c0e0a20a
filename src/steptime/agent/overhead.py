"""What the profiler costs an event in this process, measured where the traced window begins.

The bound of explain's overhead correction: without it a machine that happened to be slow while it traced would look
like a profiler that costs many times more than it can, and take whole phases of short ops away.
"""

from __future__ import annotations

import time

_BATCHES = 15
_CALLS = 20


def op_ns() -> float:
    """Nanoseconds of one small op, which the profiler records as one event; 1-2 ms altogether.

    The lower quartile of batches: what the machine does beside only ever adds.
    """
    import torch

    with torch.no_grad():
        x = torch.ones(8, device="cpu")
        torch.add(x, x)
        batches = []
        for _ in range(_BATCHES):
            start = time.perf_counter_ns()
            for _ in range(_CALLS):
                torch.add(x, x)
            batches.append((time.perf_counter_ns() - start) / _CALLS)
    return sorted(batches)[_BATCHES // 4]
