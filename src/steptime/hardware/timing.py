"""Times short calls: enough of them that the clock does not matter, few enough that a slow path ends in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

MIN_SAMPLE_S = 200e-6
"""A sample repeats its call until it is this long: perf_counter and the loop cost about 0.1 us of it."""


def sample_seconds(
    call: Callable[[], object], *, budget_s: float, most: int = 25, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds a call, in samples, after one call that is not counted.

    Args:
        call: what is timed.
        budget_s: no sample is begun after so many seconds; a first one is always taken.
        most: samples at most.
        clock: seconds; the tests give their own.
    """
    start = clock()
    call()
    once = clock() - start
    # The first call may pay for packing or page faults, so the number of repeats is found from a second one.
    if once < budget_s / 4:
        begun = clock()
        call()
        once = clock() - begun
    repeats = max(1, round(MIN_SAMPLE_S / max(once, 1e-9)))
    samples: list[float] = []
    while not samples or (len(samples) < most and clock() - start < budget_s):
        begun = clock()
        for _ in range(repeats):
            call()
        samples.append((clock() - begun) / repeats)
    return samples


def others_busy(cpus: frozenset[int], *, seconds: float = 0.5) -> float:
    """Share of `cpus` that was busy while this process slept, 0 to 1; 0 where /proc/stat cannot be read.

    The load average lags by a minute and counts this process's own imports; this does not.
    """
    before = _busy_and_all(cpus)
    time.sleep(seconds)
    after = _busy_and_all(cpus)
    total = after[1] - before[1]
    return 0.0 if total <= 0 else max(0.0, (after[0] - before[0]) / total)


def _busy_and_all(cpus: frozenset[int]) -> tuple[int, int]:
    """Ticks of /proc/stat since boot: neither idle nor waiting for a disk, and all. Steal counts as busy."""
    busy = total = 0
    try:
        text = Path("/proc/stat").read_text()
    except OSError:
        return 0, 0
    for line in text.splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cpus:
            ticks = [int(number) for number in numbers[:8]]  # guest time, the rest, is part of user time already
            total += sum(ticks)
            busy += sum(ticks) - ticks[3] - ticks[4]
    return busy, total
