"""The traced window: Kineto with shapes, plus the ranges that say which part of the step an operator belongs to.

Ranges: `steptime.step#N` (boundary to boundary), `steptime.backward`, `steptime.optimizer`, `steptime.module: path`.
The first step under a profiler pays for its start and is called `steptime.settle`.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from typing import Any

from steptime.agent.journal import Journal
from steptime.agent.overhead import op_ns


class Tracer:
    """One profile at a time; ours are told from the script's own by `ours_running`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._profile: Any = None
        self._step_range: Any = None
        self._ranges: list[Any] = []
        self._hooks: list[Any] = []
        self._names: dict[int, str] = {}
        self._traces = 0
        self._kept_steps: list[int] = []
        self.ours_running = False

    @property
    def running(self) -> bool:
        """Whether the current step is being traced."""
        return self._profile is not None

    def start(self) -> None:
        """Starts the profiler; the step that follows only settles it."""
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        plain_ns = op_ns()
        self.ours_running = True
        try:
            self._profile = torch.profiler.profile(activities=activities, record_shapes=True, acc_events=False)
            self._profile.start()
            traced_ns = op_ns()
        except BaseException:
            self.ours_running = False
            self._profile = None
            raise
        self._journal.event("overhead", event_ns=max(traced_ns - plain_ns, 0.0))
        if not _dynamo_has_compiled():
            modules = torch.nn.modules.module
            self._hooks = [
                modules.register_module_forward_pre_hook(self._module_begins),
                modules.register_module_forward_hook(self._module_ends, always_call=True),
            ]
        self._kept_steps = []
        self._step_range = _range("steptime.settle")

    def step_closed(self, step: int, *, more: bool) -> None:
        """The traced step has ended; `step` is the number of the next one, which is traced too when `more`."""
        self._close_step()
        if more:
            self._kept_steps.append(step)
            self._step_range = _range(f"steptime.step#{step}")

    def enter(self, name: str) -> None:
        """Opens a range inside the step."""
        if self._profile is not None:
            self._ranges.append(_range(name))

    def leave(self) -> None:
        """Closes the innermost range."""
        if self._ranges:
            self._ranges.pop().__exit__(None, None, None)

    def finish(self) -> str | None:
        """Stops the profiler and writes `trace.json.gz`; the path, or None when it could not be written."""
        profile, hooked = self._profile, not self._hooks
        self._stop()
        if profile is None or self._journal.folder is None:
            return None
        name = "trace.json.gz" if self._traces == 0 else f"trace-{self._traces}.json.gz"
        path = os.path.join(self._journal.folder, name)
        plain = f"{path}.{os.getpid()}.json"
        try:
            profile.export_chrome_trace(plain)
            # level 1: a level 9 trace is a tenth smaller and holds the script four times as long
            with open(plain, "rb") as source, open(f"{plain}.gz", "wb") as target:
                with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=1, filename="") as packed:
                    shutil.copyfileobj(source, packed, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
            os.replace(f"{plain}.gz", path)
        except OSError as problem:
            self._journal.event("trace", path=None, problem=str(problem))
            return None
        finally:
            for leftover in (plain, f"{plain}.gz"):
                if os.path.exists(leftover):
                    os.remove(leftover)
        self._traces += 1
        self._journal.event("trace", path=name, steps=self._kept_steps, modules=not hooked)
        return path

    def discard(self) -> None:
        """Stops the profiler and keeps nothing."""
        self._stop()

    def _stop(self) -> None:
        self._close_step()
        for hook in self._hooks:
            hook.remove()
        profile, self._profile = self._profile, None
        if profile is not None:
            try:
                profile.stop()
            finally:
                self.ours_running = False
        self._hooks = []

    def _close_step(self) -> None:
        while self._ranges:
            self.leave()
        if self._step_range is not None:
            self._step_range.__exit__(None, None, None)
            self._step_range = None

    def _module_begins(self, module: Any, _inputs: Any) -> None:
        name = self._names.get(id(module))
        if name is None:
            # the outermost module that is called knows the paths of all below it
            root = type(module).__name__
            for path, child in module.named_modules():
                self._names.setdefault(
                    id(child), f"steptime.module: {root}.{path}" if path else f"steptime.module: {root}"
                )
            name = self._names[id(module)]
        self._ranges.append(_range(name))

    def _module_ends(self, _module: Any, _inputs: Any, _output: Any) -> None:
        self.leave()


def _range(name: str) -> Any:
    import torch

    entered = torch.profiler.record_function(name)
    entered.__enter__()
    return entered


def _dynamo_has_compiled() -> bool:
    """Global module hooks would make dynamo compile again, so a compiled model keeps its inductor ranges only."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    return bool(counters and counters["stats"].get("unique_graphs"))
