"""Which window the next step belongs to.

warm-up, untraced, traced, stacks, after: each lasts at least the steps the session asks for. The untraced and the
stacks window are stretched to a least time, so that short steps give a median that means something. Ranks
of one job must trace the same steps, and end at the same step, or one waits for a peer that is gone: rank 0 decides
and announces the step in a file, two steps ahead; synchronised training lets no rank run further ahead than one.
"""

from __future__ import annotations

import json
import os
import time

from steptime.agent.journal import write_whole
from steptime.agent.session import Windows
from steptime.agent.steps import AFTER, STACKS, TRACED, UNTRACED, WARM_UP

MOST_STEPS = 5_000  # a stretched window ends here whatever the clock says
LEAD_STEPS = 2


class Schedule:
    """Counts steps; `after_step` answers with the window of the next one."""

    def __init__(self, windows: Windows, *, tracing: bool, folder: str, rank: int, world_size: int) -> None:
        self._steps = {
            WARM_UP: windows.warmup_steps,
            UNTRACED: windows.untraced_steps,
            TRACED: windows.traced_steps
            + (windows.traced_steps > 0),  # the first step under the profiler pays for its start
            STACKS: windows.stack_steps,
        }
        self._order = [WARM_UP, UNTRACED, TRACED, STACKS, AFTER] if tracing else [WARM_UP, UNTRACED]
        self._order = [window for window in self._order if self._steps.get(window, 1) > 0] or [UNTRACED]
        stretch_ns = {UNTRACED: windows.untraced_ms * 1_000_000, STACKS: windows.stacks_ms * 1_000_000}
        self._stretch_ns = stretch_ns if tracing else {}
        self._announcements = os.path.join(folder, "announced") if world_size > 1 else ""
        self._leads = rank == 0
        self._announced: dict[int, int] = {}
        self._in_window = 0
        self._since_ns = time.perf_counter_ns()
        self.window = self._order.pop(0)
        self.steps = 0

    @property
    def idle(self) -> bool:
        """No window waits to be measured: a trace on demand disturbs nothing."""
        return not self._order

    @property
    def over(self) -> bool:
        """Every window has been measured."""
        return self.window == AFTER

    def after_step(self, now_ns: int) -> int:
        """A step of `self.window` has ended; returns (and keeps) the window of the next step."""
        self.steps += 1
        self._in_window += 1
        if self._order and self._in_window >= self._steps[self.window] and self._may_end(now_ns):
            self.window = self._order.pop(0)
            self._in_window = 0
            self._since_ns = now_ns
        return self.window

    def repeat(self) -> None:
        """The traced window was spoilt (the script began its own profile): measure it again, later."""
        self._order.insert(0, TRACED)
        self.window = UNTRACED
        self._in_window = 0

    def trace_now(self, steps: int) -> None:
        """Traces the next `steps` steps on demand, then goes on as before."""
        self._order.insert(0, self.window)
        self.window = TRACED
        self._steps[TRACED] = steps + 1
        self._in_window = 0

    def _may_end(self, now_ns: int) -> bool:
        stretch_ns = self._stretch_ns.get(self.window)
        if stretch_ns is None:
            return True
        full = now_ns - self._since_ns >= stretch_ns or self._in_window >= MOST_STEPS
        if not self._announcements:
            return full
        announced = self._announced.get(self.window)
        path = f"{self._announcements}-{self.window}.json"
        if announced is None and self._leads and full:
            announced = self.steps + LEAD_STEPS
            write_whole(path, json.dumps({"window": self.window, "last_step": announced}).encode())
        elif announced is None and not self._leads and os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                announced = json.load(file)["last_step"]
        if announced is not None:
            self._announced[self.window] = announced
            return self.steps >= announced
        return self._in_window >= 2 * MOST_STEPS
