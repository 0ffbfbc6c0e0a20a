"""Starts the user's command with the agent in its environment, and waits for it as a shell would."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

import psutil

from steptime.attach.spec import SessionSpec, write_session
from steptime.attach.watch import ProcessWatch
from steptime.errors import SteptimeError

PACKAGE = Path(__file__).resolve().parent.parent
INJECT = PACKAGE / "agent" / "inject"
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
LOOKS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)  # ever rarer: each look costs the machine a few milliseconds

Sink = int | IO[Any] | None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A started command; `wait` for it or `stop` it."""

    process: subprocess.Popen[bytes]
    folder: Path
    watch: ProcessWatch = field(repr=False)

    def wait(self) -> int:
        """Waits for the command and returns its exit code (128 + n after signal n, as a shell says it).

        Meanwhile signals sent to this process go to the command, and Ctrl-C is the command's to handle.
        """
        with _signals_forwarded(self.process):
            looks = iter(LOOKS_S)
            pause_s = next(looks)
            while True:
                try:
                    code = self.process.wait(timeout=pause_s)
                    break
                except subprocess.TimeoutExpired:
                    self.watch.look()
                    pause_s = next(looks, LOOKS_S[-1])
        self.watch.save()
        return code if code >= 0 else 128 - code

    def stop(self, *, patience_s: float = 5.0) -> int:
        """Ends the command and everything below it: SIGTERM, after `patience_s` SIGKILL; returns the exit code."""
        tree: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            tree = [*root.children(recursive=True), root]
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        until = time.monotonic() + patience_s
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=patience_s)
        _, alive = psutil.wait_procs([p for p in tree if p.pid != self.process.pid], max(0.0, until - time.monotonic()))
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if self.process.poll() is None:
            self.process.kill()
        return self.wait()


def launch(
    command: Sequence[str],
    spec: SessionSpec,
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    stdout: Sink = None,
    stderr: Sink = None,
    cwd: Path | None = None,
) -> Launch:
    """Starts `command` with the agent in it.

    Args:
        command: program and arguments; a bare `python` is looked up on PATH like any other.
        spec: what the agent shall do.
        folder: the session folder, made here.
        environment: variables set on top of this process's own (a plan's `process_environment`).
        stdout: as `subprocess.Popen` takes it; None passes the command's output through.
        stderr: likewise.
        cwd: where the command starts; here when None.

    Raises:
        SteptimeError: when there is no command, it is not found, its script is not there, or the folder is unusable.
    """
    check_command(command, cwd)
    folder = folder.resolve()
    write_session(spec, folder)
    variables = {**os.environ, **agent_environment(folder, spec), **(environment or {})}
    if environment and "PYTHONPATH" in environment:
        variables["PYTHONPATH"] = os.pathsep.join([str(INJECT), environment["PYTHONPATH"]])
    try:
        process = subprocess.Popen(list(command), env=variables, stdout=stdout, stderr=stderr, cwd=cwd)
    except OSError as problem:
        raise SteptimeError(f"cannot be started: {problem.strerror}", where=command[0]) from problem
    return Launch(process=process, folder=folder, watch=ProcessWatch(process.pid, folder))


def agent_environment(folder: Path, spec: SessionSpec) -> dict[str, str]:
    """The variables that put the agent into every Python process below (also for a job script to export)."""
    variables = {
        "STEPTIME_SESSION": str(folder),
        "PYTHONPATH": os.pathsep.join([str(INJECT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        # Kineto writes its stages to stderr as "USDT:" lines, which is the script's
        "KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "99"),
    }
    if spec.redirect is not None:
        # trackers write to servers and folders of their own; a trial is no run of the user's
        variables |= {
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(spec.redirect / "wandb"),
            "WANDB_SILENT": "true",
            "MLFLOW_TRACKING_URI": f"file://{spec.redirect / 'mlflow'}",
            "COMET_OFFLINE_DIRECTORY": str(spec.redirect / "comet"),
            "NEPTUNE_MODE": "offline",
        }
        (spec.redirect / "wandb").mkdir(parents=True, exist_ok=True)
    return variables


def check_command(command: Sequence[str], cwd: Path | None = None) -> None:
    """Finds out what can be known of a command without starting it.

    Raises:
        SteptimeError: there is none, the program is not found, or the Python script is not there.
    """
    if not command:
        raise SteptimeError("no command was given", mend="put it after --, e.g. -- python train.py")
    program = command[0]
    if shutil.which(program) is None:
        raise SteptimeError("the program is not found or not executable", where=program)
    if Path(program).name.startswith("python") and len(command) > 1 and not command[1].startswith("-"):
        script = (cwd or Path()) / command[1]
        if not script.exists():
            raise SteptimeError("the script is not there", where=command[1])


@contextmanager
def _signals_forwarded(process: subprocess.Popen[bytes]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(number)

    def let_the_command_decide(_number: int, _frame: FrameType | None) -> None:
        # a terminal sends Ctrl-C to the whole foreground group: the command has it already
        return

    interrupted = forward if not sys.stdin or not sys.stdin.isatty() else let_the_command_decide
    before = {number: signal.signal(number, forward) for number in FORWARDED}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
