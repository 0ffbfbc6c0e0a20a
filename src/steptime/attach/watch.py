"""Watches the processes below a launched command, for those that the agent could not get into.

A Python process that has torch mapped but whose environment does not carry the session (an `env -i`, a container
entry point), or whose interpreter was told to ignore it (`-I`, `-E`, `-S`), trains unseen; the user is told its name.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from steptime.agent.journal import write_whole
from steptime.agent.process import helper_kind


@dataclass(frozen=True, kw_only=True)
class Unattached:
    """A process that uses torch and is not measured."""

    pid: int
    command: str
    why: str


class ProcessWatch:
    """Looks at the process tree now and then; remembers whom the agent missed."""

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid = pid
        self._folder = folder
        self._found: dict[int, Unattached] = {}
        self._torch_seen: set[int] = set()

    def look(self) -> None:
        """One look at the tree; a process that vanishes meanwhile is no news."""
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            root = psutil.Process(self._pid)
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                    self._consider(process)

    def _consider(self, process: psutil.Process) -> None:
        pid = process.pid
        if pid in self._found or pid in self._torch_seen or not _maps_torch(pid):
            return
        self._torch_seen.add(pid)
        arguments = process.cmdline()
        why = why_unattached(arguments, process.environ())
        parent = process.parent()
        # the forked workers of a missed process add nothing to its name
        if why is None or helper_kind(arguments) or (parent is not None and parent.pid in self._found):
            return
        if (self._folder / "ranks").is_dir() and any((self._folder / "ranks").glob(f"*-{pid}")):
            return  # a fallback (the import line, the .pth) brought the agent in
        self._found[pid] = Unattached(pid=pid, command=" ".join(arguments), why=why)

    def save(self) -> None:
        """Writes `watch.json`: whom the agent missed, and how many processes used torch. A full disk loses it."""
        armed = {path.name.rpartition("-")[2] for path in (self._folder / "ranks").glob("*")}
        missed = [asdict(item) for pid, item in self._found.items() if str(pid) not in armed]
        with suppress(OSError):
            content = {"unattached": missed, "torch_processes": len(self._torch_seen)}
            write_whole(os.fspath(self._folder / "watch.json"), json.dumps(content).encode())


def why_unattached(arguments: list[str], environment: dict[str, str]) -> str | None:
    """Why the agent cannot be in a Python process started like this; None when it can."""
    flags = []
    for argument in arguments[1:]:
        if not argument.startswith("-") or argument in ("-m", "-c"):
            break
        flags.append(argument.lstrip("-"))
    for flag, meaning in (("I", "isolated"), ("E", "ignores PYTHONPATH"), ("S", "runs no sitecustomize")):
        if any(flag in cluster for cluster in flags if not cluster.startswith(("W", "X"))):
            return f"python -{flag} ({meaning})"
    if "STEPTIME_SESSION" not in environment:
        return "its environment was replaced: STEPTIME_SESSION is not in it"
    if "inject" not in environment.get("PYTHONPATH", ""):
        return "PYTHONPATH was replaced on the way to it"
    return None


def _maps_torch(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return "libtorch_cpu.so" in file.read()
    except OSError:
        return False
