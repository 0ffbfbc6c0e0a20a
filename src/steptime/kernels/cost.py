"""How long a call takes here, told by a few repeats: for predictions made before a trial."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class OpCost:
    """Seconds of one call of an operation at one shape, in this process, with torch's present thread count.

    Attributes:
        forward_s: median seconds of the forward call, gradients recorded.
        backward_s: median seconds of its backward.
        runs: repeats behind the medians.
    """

    forward_s: float
    backward_s: float
    runs: int

    @property
    def total_s(self) -> float:
        """Seconds of forward and backward together."""
        return self.forward_s + self.backward_s


def time_op(forward: Callable[[], object], backward: Callable[[object], None], *, budget_s: float = 0.02) -> OpCost:
    """Medians over repeats until `budget_s` seconds are spent, at least 5; the first repeat is not counted."""
    forwards: list[float] = []
    backwards: list[float] = []
    spent = 0.0
    backward(forward())
    while spent < budget_s or len(forwards) < 5:
        start = time.perf_counter()
        output = forward()
        middle = time.perf_counter()
        backward(output)
        end = time.perf_counter()
        forwards.append(middle - start)
        backwards.append(end - middle)
        spent += end - start
    return OpCost(forward_s=statistics.median(forwards), backward_s=statistics.median(backwards), runs=len(forwards))
