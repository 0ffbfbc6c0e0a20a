"""`steptime attach PID`: where a running job's host is now, for all its ranks on this node, without stopping it.

Stacks come from py-spy, which reads another process's memory (ptrace permission, no pause with --nonblocking). A few
looks over a second and a half tell a rank that hangs in one line from one that moves, and, of several ranks, the one
that the others wait for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from steptime.agent.process import RANK_VARIABLES, helper_kind
from steptime.errors import SteptimeError, missing_extra

LOOKS = 4
OVER_S = 1.5
# innermost function names under which a rank waits for its peers
COLLECTIVES = frozenset(
    (
        *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce_coalesced"),
        *("reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "reduce", "gather", "scatter"),
        *("broadcast", "broadcast_object_list", "barrier", "monitored_barrier", "send", "recv", "wait", "synchronize"),
        *("new_group", "init_process_group", "_store_based_barrier"),
    )
)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One Python frame."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, kw_only=True)
class RunningProcess:
    """One process of the job, as it stands."""

    pid: int
    parent: int
    rank: int | None
    command: str
    role: str
    """`trains`, `worker` (a child of one that trains), `launcher` or `other`."""
    cpu_percent: float
    rss_bytes: int
    threads: int
    state: str
    stack: tuple[Frame, ...]
    """The main thread's, innermost first; empty when it cannot be read or is no Python."""
    line: Frame | None
    """The user's innermost frame: the first that lies neither in the standard library nor in a package."""
    still: bool
    """All looks saw the same stack."""
    waits_for_peers: bool
    """The main thread stands in a collective."""
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """All processes of the job on this node."""

    asked_pid: int
    processes: tuple[RunningProcess, ...]
    late: int | None
    """The rank that is not in a collective while all others are; None when there is no such one."""

    def to_json(self) -> dict[str, Any]:
        """Plain values, as `--json` prints them."""
        return {
            "pid": self.asked_pid,
            "late_rank": self.late,
            "processes": [
                {
                    "pid": p.pid,
                    "parent": p.parent,
                    "rank": p.rank,
                    "command": p.command,
                    "role": p.role,
                    "cpu_percent": p.cpu_percent,
                    "rss_bytes": p.rss_bytes,
                    "threads": p.threads,
                    "state": p.state,
                    "stack": [str(frame) for frame in p.stack],
                    "line": str(p.line) if p.line else None,
                    "still": p.still,
                    "waits_for_peers": p.waits_for_peers,
                    "problem": p.problem,
                }
                for p in self.processes
            ],
        }


def look_at(pid: int, *, looks: int = LOOKS, over_s: float = OVER_S) -> RunningJob:
    """Looks at the job that `pid` belongs to.

    Args:
        pid: any process of the job: its launcher, or one of its ranks (its siblings are found).
        looks: how often each stack is read.
        over_s: seconds between the first and the last look.

    Raises:
        SteptimeError: no such process, py-spy missing, or no permission to look.
    """
    spy = _py_spy()
    tree = _job_of(pid)
    for process in tree:
        _quiet(process.cpu_percent, 0.0)
    pythons = [process for process in tree if _is_python(process)]
    seen: dict[int, list[tuple[Frame, ...]]] = {process.pid: [] for process in pythons}
    problems: dict[int, str] = {}
    began = time.monotonic()
    for look in range(looks):
        pause_s = began + look * over_s / max(1, looks - 1) - time.monotonic()
        time.sleep(max(0.0, pause_s))
        for process in pythons:
            try:
                seen[process.pid].append(_dump(spy, process.pid))
            except SteptimeError as problem:
                problems[process.pid] = str(problem)
    if pythons and not any(seen.values()):
        raise SteptimeError(next(iter(problems.values())), where=f"PID {pid}")
    processes = tuple(_describe(process, seen.get(process.pid, []), problems, tree) for process in tree)
    return RunningJob(asked_pid=pid, processes=processes, late=_late_rank(processes))


def _late_rank(processes: tuple[RunningProcess, ...]) -> int | None:
    ranks = [p for p in processes if p.rank is not None and p.role == "trains" and p.stack]
    late = [p for p in ranks if not p.waits_for_peers]
    return late[0].rank if len(ranks) > 1 and len(late) == 1 else None


def _job_of(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        if _rank(root) is not None:
            # ranks of one job are children of one launcher: look at all of them
            parent = root.parent()
            siblings = [p for p in parent.children() if _rank(p) is not None] if parent is not None else []
            if len(siblings) > 1 and parent is not None:
                root = parent
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess as problem:
        raise SteptimeError("there is no such process", where=f"PID {pid}") from problem
    except psutil.AccessDenied as problem:
        raise SteptimeError(
            "the process belongs to someone else", where=f"PID {pid}", mend="ask its owner"
        ) from problem


def _rank(process: psutil.Process) -> int | None:
    environment: dict[str, str] = _quiet(process.environ, {}) or {}
    for rank, _, size, _ in RANK_VARIABLES:
        if environment.get(rank, "").isdigit() and environment.get(size, "").isdigit():
            return int(environment[rank])
    return None


def _quiet(ask: Any, otherwise: Any) -> Any:
    try:
        return ask()
    except psutil.Error:
        return otherwise


def _is_python(process: psutil.Process) -> bool:
    return "python" in os.path.basename(_quiet(process.exe, "") or "")


def _describe(
    process: psutil.Process,
    stacks: list[tuple[Frame, ...]],
    problems: dict[int, str],
    tree: list[psutil.Process],
) -> RunningProcess:
    arguments: list[str] = _quiet(process.cmdline, []) or []
    stack = stacks[-1] if stacks else ()
    rank = _rank(process)
    parent = _quiet(process.ppid, 0)
    helper = helper_kind(arguments)
    pythons = {p.pid: p for p in tree if _is_python(p)}
    if helper:
        role = "launcher" if helper.startswith("launcher") else "other"
    elif process.pid not in pythons:
        role = "other"
    elif (
        parent in pythons
        and not helper_kind(_quiet(pythons[parent].cmdline, []) or [])
        and rank == _rank(pythons[parent])
    ):
        role = "worker"
    else:
        role = "trains"
    memory = _quiet(process.memory_info, None)
    cpu = float(_quiet(process.cpu_percent, 0.0))
    return RunningProcess(
        pid=process.pid,
        parent=parent,
        rank=rank,
        command=" ".join(arguments),
        role=role,
        cpu_percent=cpu,
        rss_bytes=memory.rss if memory else 0,
        threads=int(_quiet(process.num_threads, 0)),
        state=str(_quiet(process.status, "gone")),
        stack=stack,
        line=next((frame for frame in stack if _is_the_users(frame.file)), None),
        still=len(stacks) > 1 and all(other == stacks[0] for other in stacks),
        waits_for_peers=bool(stack)
        and (_in_collective(stacks) or (rank is not None and _idle_in_backward(stacks, cpu))),
        problem=problems.get(process.pid, ""),
    )


def _in_collective(stacks: list[tuple[Frame, ...]]) -> bool:
    """Every look found the main thread in torch.distributed."""
    return all(_waits(stack) for stack in stacks)


def _idle_in_backward(stacks: list[tuple[Frame, ...]], cpu_percent: float) -> bool:
    """DDP waits for its reductions inside the autograd engine, where no Python frame says so."""
    inside = all(any(frame.function == "_engine_run_backward" for frame in stack[:2]) for stack in stacks)
    return inside and len(stacks) > 1 and cpu_percent < 20


def _waits(stack: tuple[Frame, ...]) -> bool:
    for frame in stack:
        if _is_the_users(frame.file):
            return False
        if frame.function in COLLECTIVES and ("torch" in frame.file):
            return True
    return False


def _is_the_users(file: str) -> bool:
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file or "/steptime/agent/" in file:
        return False
    return not any(part.startswith("python3.") for part in Path(file).parts)


def _py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise missing_extra("attach", "py-spy")
    return found


def _dump(spy: str, pid: int) -> tuple[Frame, ...]:
    """The main thread's stack, innermost first."""
    command = [spy, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired as problem:
        raise SteptimeError("py-spy got no answer in 20 s") from problem
    if done.returncode != 0:
        if not psutil.pid_exists(pid):
            raise SteptimeError("the process has ended")
        said = done.stderr.strip().splitlines()
        if any("ermission" in line or "ptrace" in line for line in said):
            raise SteptimeError(
                "the system does not let us look into the process",
                mend="run as its owner with kernel.yama.ptrace_scope 0 or CAP_SYS_PTRACE, or as root",
            )
        raise SteptimeError(f"py-spy: {said[-1] if said else 'failed'}")
    threads = json.loads(done.stdout)
    main = next((t for t in threads if t.get("thread_name") == "MainThread"), None)
    main = main or next((t for t in threads if t.get("os_thread_id") == pid), threads[0] if threads else None)
    frames = main["frames"] if main else []
    return tuple(Frame(function=f["name"], file=f.get("filename") or "?", line=f.get("line") or 0) for f in frames)
