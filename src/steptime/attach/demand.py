"""Asks a running process, started under steptime, for a trace of its next steps."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import psutil

from steptime.errors import SteptimeError


def trace_on_demand(pid: int, steps: int, *, timeout_s: float = 300.0) -> Path:
    """Has process `pid` trace its next `steps` training steps; returns where the trace lies.

    `pid` may be the command that steptime started (torchrun, a shell): its first training process is asked.

    Raises:
        SteptimeError: when the process is gone, was not started under steptime, or takes no step in time.
    """
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess as problem:
        raise SteptimeError("there is no such process", where=f"PID {pid}") from problem
    for process in processes:
        path = _socket_of(process)
        if path is not None:
            return _ask(path, steps, timeout_s)
    raise SteptimeError(
        "no trace can be asked of this process: it does not train under steptime",
        where=f"PID {pid}",
        mend="start it with `steptime run -- ...`; without --trace, attach shows where it is now",
    )


def _socket_of(process: psutil.Process) -> Path | None:
    try:
        session = process.environ().get("STEPTIME_SESSION")
    except psutil.Error:
        return None
    path = Path(session) / "demand" / f"{process.pid}.sock" if session else None
    return path if path is not None and path.exists() else None


def _ask(path: Path, steps: int, timeout_s: float) -> Path:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(json.dumps({"trace": steps}).encode() + b"\n")
            line = connection.makefile("rb").readline()
    except OSError as problem:
        raise SteptimeError(f"the process did not answer: {problem}", where=str(path)) from problem
    answer = json.loads(line) if line else {"problem": "the process ended"}
    if "trace" not in answer:
        raise SteptimeError(answer["problem"], where=str(path))
    return Path(answer["trace"])
