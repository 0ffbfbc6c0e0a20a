"""One training step's path through the agent. Read `_boundary` first: it is what happens between two steps."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from typing import Any

from steptime.agent import hooks, seeds
from steptime.agent.demand import TraceRequests
from steptime.agent.ending import abandon_trial, stop_process
from steptime.agent.gate import Gate, wait_for_device
from steptime.agent.guest import ScriptsProfiler
from steptime.agent.journal import Journal
from steptime.agent.losses import LossLog
from steptime.agent.process import minor_faults, rank_of_this_process
from steptime.agent.schedule import Schedule
from steptime.agent.session import Session
from steptime.agent.stacks import StackSampler
from steptime.agent.steps import (
    FLAG_SETTLING,
    FLAG_SKIPPED,
    SCRIPTS_PROFILER,
    STACKS,
    TRACED,
    StepLog,
    StepPattern,
)

clock_ns = time.perf_counter_ns


def start_recording(session: Session, calls: seeds.SeedCalls) -> None:
    """Called at the end of `import torch`: patches seeds, applies the plan, and waits for the first optimizer step."""
    journal = Journal(session.folder)
    journal.event("torch_imported")
    seeds.patch_torch(calls)
    if session.seed_offset and not calls.count:
        seeds.seed_once(calls)
    recorder = Recorder(session, journal, calls)
    hooks.wrap_optimizers(recorder)
    hooks.wrap_grad_scaler(recorder, recorder.losses.scaled)
    hooks.wrap_backward(recorder.backward_begins, recorder.backward_ends)
    # before the plan's own wrapper, which then lies around it
    hooks.wrap_loaders(recorder.loader_iterated)
    recorder.apply_plan()
    os.register_at_fork(after_in_child=recorder.forked)
    atexit.register(recorder.process_ends)


class Recorder:
    """The state of the measurement in this process; a `hooks.StepListener`."""

    def __init__(self, session: Session, journal: Journal, calls: seeds.SeedCalls) -> None:
        self._session = session
        self._journal = journal
        self._calls = calls
        self._active = True
        self._arming_failed = False
        self._loaders: set[int] = set()
        self._log: StepLog | None = None
        self._reset_parts()
        self._profiler = ScriptsProfiler(ours_running=lambda: self._tracer.ours_running, make_way=self._make_way)

    def _reset_parts(self, *, audits: bool = True) -> None:
        from steptime.agent.trace import Tracer

        session, journal = self._session, self._journal
        self.optimizer_steps = 0
        self.losses = LossLog(journal)
        self._tracer = Tracer(journal)
        self._pattern = StepPattern()
        self._audit: Any = None
        if session.record_audit and audits:
            from steptime.agent.audit import Audit

            self._audit = Audit(journal)
        self._gate = Gate(session.gate, session.folder) if session.gate else None
        self._schedule: Schedule | None = None
        self._sampler: StackSampler | None = None
        self._requests: TraceRequests | None = None
        self._started_ns = clock_ns()
        self._flags = FLAG_SETTLING
        self._backwards = 0
        self._boundary_optimizer: int | None = None
        self._last_step_ended_ns = 0

    def apply_plan(self) -> None:
        """The plan, then the user's own remedies; what fails is reported and leaves the script as it was."""

        def report(name: str, ok: bool, why: str) -> None:
            self._journal.event("applied", name=name, ok=ok, why=why)

        if self._session.plan:
            try:
                from steptime.agent.apply import apply_plan

                apply_plan(self._session.plan, report)
            except Exception as problem:
                report("plan", False, repr(problem))
        for path in self._session.extra:
            try:
                namespace: dict[str, Any] = {"__name__": "steptime_extra", "__file__": path}
                with open(path, encoding="utf-8") as file:
                    exec(compile(file.read(), path, "exec"), namespace)
                namespace["apply"](report)
            except Exception as problem:
                report(os.path.basename(path), False, repr(problem))

    def optimizer_made(self, optimizer: Any) -> None:
        """The script built an optimizer: its first step begins here."""
        self._started_ns = clock_ns() if self._log is None else self._started_ns
        with contextlib.suppress(Exception):
            self._journal.event("optimizer", type=type(optimizer).__name__, **_facts_of(optimizer))

    def loader_iterated(self, loader: Any) -> None:
        """A DataLoader's iterator is made with gradients on; told once a loader."""
        if self._active and id(loader) not in self._loaders:
            self._loaders.add(id(loader))
            with contextlib.suppress(Exception):
                self._journal.event("loader", **facts_of_loader(loader))

    def optimizer_begins(self, optimizer: Any) -> None:
        """Before the parameters change."""
        if self._audit is not None and self._active:
            self._audit.optimizer_step(optimizer)
        if self._tracer.running:
            self._tracer.enter("steptime.optimizer")

    def optimizer_ends(self, optimizer: Any, skipped: bool) -> None:
        """After they changed, or after a GradScaler decided that they shall not."""
        now_ns = clock_ns()
        self.optimizer_steps += 1
        if self._tracer.running and not skipped:
            self._tracer.leave()
        if not self._active:
            return
        if self._log is None:
            self._arm("first optimizer step")
        if self._pattern.closes(optimizer) and self._log is not None:
            try:
                self._boundary(now_ns, FLAG_SKIPPED if skipped else 0)
            except Exception as problem:
                self._give_up(problem)

    def backward_begins(self, tensors: Any) -> None:
        """An outermost backward call; `tensors` are its roots."""
        if not self._active:
            return
        self._backwards += 1
        if self._log is None:
            self._arm("first backward")
        if self._session.record_losses:
            try:
                self.losses.backward_begins(tensors)
            except Exception as problem:
                self._give_up(problem)
        if self._audit is not None:
            self._audit.backward()
        if self._tracer.running:
            self._tracer.enter("steptime.backward")

    def backward_ends(self) -> None:
        """The gradients are there."""
        if self._tracer.running:
            self._tracer.leave()

    def _boundary(self, now_ns: int, flags: int) -> None:
        log, schedule = self._log, self._schedule
        if log is None or schedule is None:
            return
        if self._gate is not None and self._gate.block_ends:
            wait_for_device()
            now_ns = clock_ns()
        window = schedule.window if not self._profiler.active else SCRIPTS_PROFILER
        log.append(self._started_ns, now_ns, window, flags | self._flags)
        self._flags = 0
        duration_ns = now_ns - self._started_ns
        self.losses.step_closed(now_ns)
        if self._audit is not None:
            self._audit.step_closed()
        if self._pattern.boundary != self._boundary_optimizer:
            self._boundary_optimizer = self._pattern.boundary
            self._journal.event(
                "pattern", step=log.count, optimizers=self._pattern.optimizers, boundary=self._pattern.boundary
            )
        before = schedule.window
        after = schedule.after_step(now_ns)
        requests = self._requests
        if requests is not None and requests.wanted and schedule.idle and not self._profiler.active:
            schedule.trace_now(requests.taken())
            after = TRACED
        if before == TRACED or after == TRACED or before != after:
            self._change_window(before, after)
        if self._gate is not None:
            answer = self._gate.after_step(duration_ns, log.count)
            if answer == "stop":
                self._stop("gate")
            self._flags |= FLAG_SETTLING if answer == "held" else 0
        if log.count == self._session.max_steps:
            self._stop("max_steps")
        if self._session.stop_after_windows and schedule.over:
            self._stop("windows over")
        self._started_ns = clock_ns()

    def _change_window(self, before: int, after: int) -> None:
        log, schedule, tracer = self._log, self._schedule, self._tracer
        if log is None or schedule is None:
            return
        if before == TRACED and tracer.running:
            tracer.step_closed(log.count, more=after == TRACED)
            if after != TRACED:
                path = tracer.finish()
                if self._requests is not None:
                    self._requests.finished(path)
                self._flags |= FLAG_SETTLING
        elif after == TRACED:
            if self._profiler.active:
                schedule.repeat()
                return
            tracer.start()
            self._flags |= FLAG_SETTLING
        if before == STACKS and after != STACKS:
            self._end_sampling()
        if after == STACKS and before != STACKS:
            self._sampler = StackSampler(threading.get_ident())
            self._sampler.start()
        if before != after:
            self._journal.event("window", window=after, step=log.count, minor_faults=minor_faults())

    def _end_sampling(self) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None and self._journal.folder is not None:
            with contextlib.suppress(OSError):
                sampler.stop(os.path.join(self._journal.folder, "stacks.txt"))

    def _make_way(self) -> None:
        """The script starts its own profile while ours runs: ours is thrown away and taken later."""
        self._tracer.discard()
        self._journal.event("guest", what="the script began its own profile; ours was dropped and will be retaken")
        if self._schedule is not None:
            self._schedule.repeat()

    def _arm(self, reason: str) -> None:
        if self._arming_failed:
            return
        try:
            folder = self._journal.open(reason)
            rank = rank_of_this_process()
            self._schedule = Schedule(
                self._session.windows,
                tracing=self._session.mode == "explain",
                folder=self._session.folder,
                rank=rank["rank"],
                world_size=rank["world_size"],
            )
            self._log = StepLog(os.path.join(folder, "steps.bin"))
            with contextlib.suppress(OSError):  # a folder too deep for a socket: no traces on demand
                self._requests = TraceRequests(self._session.folder)
        except OSError as problem:  # a full disk or a read-only folder: the script runs on unmeasured
            self._arming_failed = True
            with contextlib.suppress(OSError), open(f"{self._session.folder}/fault-{os.getpid()}.txt", "w") as file:
                file.write(f"nothing can be recorded: {problem}\n")
            if self._session.mode == "trial":
                abandon_trial(str(problem))

    def _stop(self, why: str) -> None:
        stop_process(self._session.folder, lambda: self._finish(why))

    def _finish(self, why: str) -> None:
        if not self._active or self._log is None:
            return
        self._active = False
        if self._tracer.running:
            self._tracer.discard()
        self._end_sampling()
        if self._requests is not None:
            self._requests.close()
        self.losses.flush()
        if self._audit is not None:
            self._audit.write()
        self._journal.event(
            "end",
            why=why,
            steps=self._log.count,
            optimizer_steps=self.optimizer_steps,
            backward_calls=self._backwards,
            seeded=self._calls.count > 0,
        )

    def _give_up(self, problem: Exception) -> None:
        """A fault of ours: said once, and the script goes on unmeasured (a trial ends)."""
        self._active = False
        self._journal.event("refused", what="measuring stopped", why=repr(problem))
        if self._session.mode == "trial":
            abandon_trial(repr(problem))

    def process_ends(self) -> None:
        """At a normal end, an exception or sys.exit; `os._exit` and SIGKILL leave what is mapped and appended."""
        with contextlib.suppress(Exception):
            self._finish("process ended")

    def forked(self) -> None:
        """In a forked child: what is mapped belongs to the parent; a child that trains makes a folder of its own."""
        self._log = None
        self._journal = Journal(self._session.folder)
        self._reset_parts(audits=False)


def facts_of_loader(loader: Any) -> dict[str, Any]:
    """What predictions want to know; `batches` is None where the data set has no length."""
    from torch.utils.data import IterableDataset

    from steptime.agent.apply.data import shuffles

    iterable = isinstance(loader.dataset, IterableDataset)
    return {
        "workers": loader.num_workers,
        "batch_size": loader.batch_size,
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": loader.pin_memory,
        "persistent_workers": loader.persistent_workers,
        "iterable": iterable,
        "shuffles": shuffles(loader),
        # the length of an iterable data set is a guess that torch warns of
        "batches": None if iterable else len(loader),
    }


def _facts_of(optimizer: Any) -> dict[str, Any]:
    groups = optimizer.param_groups
    return {
        "parameters": sum(len(group["params"]) for group in groups),
        "elements": sum(p.numel() for group in groups for p in group["params"]),
        "groups": len(groups),
    }
