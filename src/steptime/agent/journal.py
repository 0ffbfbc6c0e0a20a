"""The rank's folder: made when the process proves to train, then `events.jsonl` line by line.

Events that come earlier (torch imported, plan applied) wait in memory: a process that never trains leaves nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from steptime.agent.process import framework_in_use, rank_of_this_process


class Journal:
    """Where this process writes. One `os.write` a line, so a line is whole even when the process is killed."""

    def __init__(self, session_folder: str) -> None:
        self._session_folder = session_folder
        self._waiting: list[bytes] = []
        self._descriptor = -1
        self.folder: str | None = None

    def event(self, name: str, /, **fields: Any) -> None:
        """Appends `{"event": name, "time_ns": perf_counter_ns, ...}`; a full disk loses the line, not the script."""
        line = json.dumps({"event": name, "time_ns": time.perf_counter_ns(), **fields}, default=str).encode() + b"\n"
        if self._descriptor < 0:
            self._waiting.append(line)
            return
        try:
            os.write(self._descriptor, line)
        except OSError:
            return

    def open(self, reason: str) -> str:
        """Makes the rank's folder with `process.json`, and writes what has waited. Raises OSError."""
        rank = rank_of_this_process()
        self.folder = folder = os.path.join(self._session_folder, "ranks", f"{rank['rank']}-{os.getpid()}")
        os.makedirs(folder, exist_ok=True)
        torch = sys.modules["torch"]
        process = {
            "pid": os.getpid(),
            **rank,
            "argv": sys.orig_argv,
            "cwd": os.getcwd(),
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "armed": True,
            "reason": reason,
            "framework": framework_in_use(),
            "threads": torch.get_num_threads(),
            "cuda": bool(torch.cuda.is_available()),
            "clock": {"perf_counter_ns": time.perf_counter_ns(), "time_ns": time.time_ns()},
        }
        write_whole(os.path.join(folder, "process.json"), json.dumps(process, indent=1).encode())
        self._descriptor = os.open(
            os.path.join(folder, "events.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        waiting, self._waiting = self._waiting, []
        for line in waiting:
            os.write(self._descriptor, line)
        return folder


def write_whole(path: str, data: bytes) -> None:
    """Writes under a temporary name, syncs, renames: a reader sees the old file or the whole new one."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
