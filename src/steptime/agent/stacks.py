"""The stacks window: a thread that looks at the main thread's Python stack every few milliseconds.

A sampler, not the profiler's `with_stack`: that one costs 37-65% of a step on the demo's model and ties lines to
operators only, while a share of samples is a share of time whatever the process does (loading, logging, waiting). Its
bias: the thread needs the interpreter lock, so it sees pure-Python code only at the interpreter's switch interval.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from types import FrameType

from steptime.agent.journal import write_whole

INTERVAL_S = 0.005
DEEPEST = 128


class StackSampler:
    """Samples one thread from `start` to `stop`; folded stacks, outermost frame first."""

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._samples: Counter[tuple[tuple[str, str, int], ...]] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="steptime-stacks", daemon=True)

    def start(self) -> None:
        """Begins sampling."""
        self._thread.start()

    def stop(self, path: str) -> int:
        """Ends sampling and writes `path`; returns the number of samples. Raises OSError."""
        self._stop.set()
        self._thread.join(timeout=1.0)
        lines = [
            ";".join(f"{function} ({file}:{line})" for function, file, line in stack) + f" {count}"
            for stack, count in self._samples.most_common()
        ]
        write_whole(path, ("\n".join(lines) + "\n").encode())
        return sum(self._samples.values())

    def _sample(self) -> None:
        next_s = time.monotonic()
        while not self._stop.is_set():
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None:
                self._samples[_stack_of(frame)] += 1
            next_s = max(next_s + INTERVAL_S, time.monotonic())
            self._stop.wait(max(0.0, next_s - time.monotonic()))


def _stack_of(frame: FrameType | None) -> tuple[tuple[str, str, int], ...]:
    stack = []
    while frame is not None and len(stack) < DEEPEST:
        code = frame.f_code
        if f"{os.sep}steptime{os.sep}agent{os.sep}" not in code.co_filename:
            stack.append((code.co_qualname, code.co_filename.replace(";", "_"), frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(stack))
