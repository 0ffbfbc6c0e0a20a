"""`ScriptTrials`: an unmodified script, launched with the agent in it as often as tune needs it.

Every trial writes into a folder of its own (`redirect`); a file that would escape is reported by the agent, and tune
then refuses the script with the path named. Two processes live at once in a duel; where memory does not hold two,
each block gets a fresh process (slower, and the first steps of each are thrown away).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from steptime.attach import Launch, SessionRecord, SessionSpec, launch, read_session
from steptime.attach.gate import GateServer
from steptime.errors import SteptimeError
from steptime.plan import process_environment
from steptime.tune.trials import UNCHANGED, Explained, Floats, Setup, Side, SideEndedError, Trained

_SKIPPED = 1
"""Flag of a step whose optimizer was skipped (agent/steps.py)."""
_WARM_STEPS = 12
"""Steps within which compilation and first-touch costs are over."""
_QUIET = {"OMP_WAIT_POLICY": "PASSIVE"}
"""For trainings that share cores: a team that spins while it waits would take the cores of the other."""


@dataclass(kw_only=True)
class ScriptTrials:
    """The script behind `command`; see `Trials`.

    Args:
        command: as typed behind `--`.
        folder: takes the sessions; short, since a Unix socket lies in it.
        cores: logical CPUs to share out.
        warn: told in one line what the user should know.
    """

    command: Sequence[str]
    folder: Path
    cores: int
    warn: Callable[[str], None]
    _count: int = field(default=0, init=False)
    _gate: GateServer | None = field(default=None, init=False)
    _ranks: int = field(default=1, init=False)

    def __enter__(self) -> ScriptTrials:
        self._gate = GateServer(self.folder / "gate")
        return self

    def __exit__(self, *_: object) -> None:
        if self._gate is not None:
            self._gate.close()

    def explain(self, setup: Setup = UNCHANGED) -> Explained:
        """Measures and explains the script under a setup; it is stopped once measured.

        Raises:
            SteptimeError: it failed, no step was found, or it writes where no trial may.
        """
        from steptime.explain import explain_session, look_for_others, with_note
        from steptime.hardware import load_calibration

        others = look_for_others()
        started_ns = time.perf_counter_ns()
        folder = self._fresh("explain")
        spec = SessionSpec(
            mode="explain",
            plan=setup.plan.agent_json(),
            extra=setup.extra,
            stop_after_windows=True,
            redirect=folder / "files",
        )
        code, tail = self._run(spec, folder, process_environment(setup.plan))
        record = read_session(folder)
        _refuse_escapes(record)
        if code != 0 or not record.ranks:
            what = f"failed with exit code {code}" if code else "ended without a training step"
            raise SteptimeError(f"the script {what}{f': {tail}' if tail else ''}", where=" ".join(self.command))
        self._ranks = record.ranks[0].world_size
        first = record.ranks[0]
        explanation = with_note(explain_session(record, load_calibration()), others)
        return Explained(
            explanation=explanation,
            start_s=max(float(first.steps.start_ns[0] - started_ns) / 1e9, 0.1) if len(first.steps) else 10.0,
            python=shutil.which(str((first.process.get("argv") or [""])[0])) or "",
            steps_seen=len(first.steps),
            cores=self.cores,
        )

    def open(self, setup: Setup) -> Side:
        """A process of the script, held after its first step."""
        return _ScriptSide(trials=self, setup=setup)

    def train(self, setup: Setup, seed_offsets: Sequence[int], steps: int) -> list[Trained]:
        """One run an offset, two at a time on a single-process script: timing does not matter here."""
        at_once = 2 if self._ranks == 1 and self.cores >= 2 and len(seed_offsets) > 1 else 1
        threads = str(max(self.cores // (at_once * self._ranks), 1))
        environment = {
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            **_QUIET,
            **process_environment(setup.plan),
        }
        found: list[Trained] = []
        for start in range(0, len(seed_offsets), at_once):
            batch = [(self._fresh("seed"), offset) for offset in seed_offsets[start : start + at_once]]
            running = [
                self.start(
                    SessionSpec(
                        mode="trial",
                        plan=setup.plan.agent_json(),
                        extra=setup.extra,
                        seed_offset=offset,
                        max_steps=steps,
                        redirect=folder / "files",
                        audit=True,
                    ),
                    folder,
                    environment,
                )
                for folder, offset in batch
            ]
            with _stopped_on_error(running):
                codes = [one.wait() for one in running]
            found += [
                _trained(read_session(folder), code, _tail(folder))
                for (folder, _), code in zip(batch, codes, strict=True)
            ]
        return found

    def start(self, spec: SessionSpec, folder: Path, environment: dict[str, str]) -> Launch:
        """Starts the script; what it prints goes to files in the session folder's parent."""
        with open(_log(folder), "wb") as log:
            return launch(self.command, spec, folder=folder, environment=environment, stdout=log, stderr=log)

    def gate(self) -> GateServer:
        """The gate that all sides stand at."""
        assert self._gate is not None, "use ScriptTrials as a context manager"
        return self._gate

    def _run(self, spec: SessionSpec, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
        started = self.start(spec, folder, environment)
        with _stopped_on_error([started]):
            code = started.wait()
        return code, _tail(folder)

    def _fresh(self, kind: str) -> Path:
        self._count += 1
        return self.folder / f"{kind}{self._count}"


@dataclass(kw_only=True)
class _ScriptSide:
    """One process (or torchrun job) at the gate; started anew when the script comes to its end."""

    trials: ScriptTrials
    setup: Setup
    _launch: Launch | None = field(default=None, init=False)
    _folder: Path = field(default=Path(), init=False)
    _alternating: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._alternating = _memory_is_short()
        if self._alternating:
            self.trials.warn("memory is short for two processes: blocks alternate in fresh processes")
        self._start()

    def block(self, steps: int, *, settle: int = 1) -> float:
        """Seconds a step, of the slowest rank."""
        if self._launch is None:
            self._start()
        try:
            return self._block(steps, settle)
        except SteptimeError as error:
            code = self._end()
            if code not in (0, None):
                raise SideEndedError(f"exit code {code}: {_tail(self._folder) or error}") from None
        # the script came to its end within the block: a fresh process runs the block whole
        self._start()
        try:
            return self._block(steps, settle)
        except SteptimeError:
            self._end()
            raise SideEndedError(f"the script has fewer than the {steps + settle} steps of a block") from None

    def _block(self, steps: int, settle: int) -> float:
        # run_block itself drops one settling step
        ranks = self.trials.gate().run_block(self._folder.name, steps + settle - 1, alive=self._alive)
        counted = [durations[settle - 1 :] for durations in ranks]
        seconds = max(sum(durations) / len(durations) for durations in counted) / 1e9
        if self._alternating:
            self._end()
            self._launch = None
        return seconds

    def compile_s(self) -> float:
        """Seconds of the first steps beyond the median of the later ones, of the slowest rank."""
        with contextlib.suppress(SteptimeError):
            ranks = [rank.steps.duration_ns for rank in read_session(self._folder).ranks]
            extra = [
                float(np.clip(ns[:_WARM_STEPS] - np.median(ns[_WARM_STEPS:]), 0, None).sum())
                for ns in ranks
                if len(ns) > _WARM_STEPS
            ]
            return max(extra, default=0.0) / 1e9
        return 0.0

    def refused(self) -> str:
        """Why a change was not taken up in this process."""
        with contextlib.suppress(SteptimeError):
            record = read_session(self._folder)
            _refuse_escapes(record)
            if record.ranks:
                return Trained(losses={}, applied=record.ranks[0].applied).refused
        return ""

    def close(self) -> None:
        """Ends the process."""
        self._end()
        self._launch = None

    def _alive(self) -> bool:
        return self._launch is not None and self._launch.process.poll() is None

    def _start(self) -> None:
        trials = self.trials
        self._folder = trials._fresh("side")
        spec = SessionSpec(
            mode="trial",
            plan=self.setup.plan.agent_json(),
            extra=self.setup.extra,
            gate=trials.gate().path,
            redirect=self._folder / "files",
        )
        self._launch = trials.start(spec, self._folder, process_environment(self.setup.plan))
        try:
            trials.gate().wait_until_held(self._folder.name, alive=self._alive)
        except SteptimeError as error:
            code = self._end()
            raise SideEndedError(f"exit code {code}: {_tail(self._folder) or error}") from None
        if self._alternating:
            with contextlib.suppress(SteptimeError):
                trials.gate().run_block(self._folder.name, _WARM_STEPS, alive=self._alive)

    def _end(self) -> int | None:
        if self._launch is None:
            return None
        self.trials.gate().stop(self._folder.name)
        with contextlib.suppress(Exception):
            self._launch.process.wait(timeout=5.0)
        return self._launch.stop()


@contextlib.contextmanager
def _stopped_on_error(running: Sequence[Launch]) -> Iterator[None]:
    """No trial outlives a tuning that is broken off."""
    try:
        yield
    except BaseException:
        for one in running:
            one.stop()
        raise


def _memory_is_short() -> bool:
    """Whether another process as large as the largest of our children would not fit."""
    import psutil

    largest = 0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            largest = max(largest, child.memory_info().rss)
    return 1.2 * largest > psutil.virtual_memory().available


def _trained(record: SessionRecord, code: int, tail: str) -> Trained:
    _refuse_escapes(record)
    if code != 0 or not record.ranks:
        why = f"exit code {code}" if code else "no training step was found"
        return Trained(losses={}, failed=f"{why}{f': {tail}' if tail else ''}")
    first = record.ranks[0]
    return Trained(
        losses=_mean_losses(record),
        audit=first.audit,
        applied=first.applied,
        seeded=first.seeded,
        skipped_steps=int(np.count_nonzero(first.steps.flags & _SKIPPED)),
    )


def _mean_losses(record: SessionRecord) -> dict[str, Floats]:
    """Each loss averaged over the ranks, over the steps that all have."""
    found: dict[str, Floats] = {}
    for site in record.ranks[0].losses:
        series = [rank.losses[site] for rank in record.ranks if site in rank.losses]
        steps = min(len(one) for one in series)
        found[site] = np.mean([one[:steps] for one in series], axis=0)
    return found


def _refuse_escapes(record: SessionRecord) -> None:
    for rank in record.ranks:
        for event in rank.events_named("refused"):
            raise SteptimeError(
                f"the script writes to {event.get('path', 'a file')}, which trials cannot redirect",
                mend="give the script an option that puts its output elsewhere, and pass it behind --",
            )


def _log(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _tail(folder: Path) -> str:
    """The last line that the script printed."""
    try:
        lines = _log(folder).read_bytes()[-4096:].decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:200] if lines else ""


def usable_cores() -> int:
    """Logical CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
