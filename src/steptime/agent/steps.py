"""Which optimizer step closes a training step, and the memory-mapped log of the steps.

`steps.bin`: a 64-byte header (`STEPTIME`, version, record bytes, count, capacity, pid; little-endian int64 after the
magic) and records of four int64 `(start_ns, end_ns, window, flags)`. The pages belong to the kernel, so a SIGKILL
loses nothing.
"""

from __future__ import annotations

import mmap
import os
import struct
import weakref
from typing import Any

MAGIC = b"STEPTIME"
HEADER_BYTES = 64
RECORD = struct.Struct("<qqqq")
COUNT = struct.Struct("<q")
COUNT_OFFSET = 24
FIRST_CAPACITY = 65_536

WARM_UP, UNTRACED, TRACED, STACKS, AFTER, SCRIPTS_PROFILER = range(6)

FLAG_SKIPPED = 1  # a GradScaler found an infinity and left the parameters alone
FLAG_SETTLING = 2  # the first step after the agent (or the gate) held the process: caches are cold


class StepLog:
    """An append of 32 bytes into mapped memory: no lock, no system call, no allocation."""

    def __init__(self, path: str) -> None:
        """Raises OSError. The file's blocks are allocated now: a hole met on a full disk would kill the script."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.count = 0
        self._capacity = 0
        self._map: mmap.mmap | None = None
        self._grow(FIRST_CAPACITY)

    def _grow(self, capacity: int) -> None:
        size = HEADER_BYTES + capacity * RECORD.size
        os.posix_fallocate(self._descriptor, 0, size)
        self._capacity = capacity
        self._map = mmap.mmap(self._descriptor, size)
        self._map[:HEADER_BYTES] = MAGIC + struct.pack(
            "<qqqqqqq", 1, RECORD.size, self.count, capacity, os.getpid(), 0, 0
        )

    def append(self, start_ns: int, end_ns: int, window: int, flags: int) -> None:
        """One training step. When the file can't grow the record stops: the script goes on."""
        if self.count == self._capacity:
            try:
                self._grow(2 * self._capacity)
            except OSError:
                self._map = None
        if self._map is None:
            return
        RECORD.pack_into(self._map, HEADER_BYTES + 32 * self.count, start_ns, end_ns, window, flags)
        self.count += 1
        COUNT.pack_into(self._map, COUNT_OFFSET, self.count)


class StepPattern:
    """Says of each optimizer step whether it closes a training step.

    The training loop repeats a pattern of optimizers (a GAN: D, D, G). The step is one period of it, and its boundary
    is the step of the least frequent optimizer; of several equally frequent ones, the one that comes last. Learned
    over the first few periods, again when an unknown optimizer appears, and again when the boundary's optimizer has
    been silent for several periods (training moved on to another one).
    """

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._counts: dict[int, int] = {}
        self._last_seen: dict[int, int] = {}
        self._single: weakref.ref[Any] | None = None
        self._learning = True
        self._steps = 0
        self._since_boundary = 0
        self._period = 1
        self.boundary: int | None = None

    @property
    def optimizers(self) -> int:
        """How many optimizers have stepped so far."""
        return len(self._numbers)

    def closes(self, optimizer: Any) -> bool:
        """Counts one step of `optimizer`; True when the training step ends with it."""
        if self._single is not None and self._single() is optimizer:
            return True
        number = self._numbers.get(optimizer)
        if number is None:
            number = self._numbers[optimizer] = len(self._last_seen)
            self._single = weakref.ref(optimizer) if number == 0 else None
            if not self._learning:
                self._relearn()
        self._since_boundary += 1
        if not self._learning and self._since_boundary > 4 * self._period + 8:
            self._relearn()
        if self._learning:
            self._learn(number)
        if number != self.boundary:
            return False
        self._period = max(self._period, self._since_boundary)
        self._since_boundary = 0
        return True

    def _relearn(self) -> None:
        self._learning = True
        self._counts.clear()
        self._steps = 0
        self._period = 1

    def _learn(self, number: int) -> None:
        self._steps += 1
        self._counts[number] = self._counts.get(number, 0) + 1
        self._last_seen[number] = self._steps
        fewest = min(self._counts.values())
        rare = [k for k, count in self._counts.items() if count == fewest]
        self.boundary = max(rare, key=lambda k: self._last_seen[k])
        # an optimizer for each parameter (stepped inside backward) makes long periods: learn at least four
        self._learning = self._steps < max(16, 4 * len(self._counts))
