"""Whether the process of a run that never said how it ended is still there."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from steptime.ledger.schema import RunRow


def this_process() -> dict[str, Any]:
    """What tells this process from all others of this host, later ones of the same id included."""
    return {"pid": psutil.Process().pid, "pid_started": psutil.Process().create_time()}


def is_lost(run: RunRow) -> bool:
    """Whether `run` counts as running though the steptime that wrote it is gone (killed, or the host restarted).

    False for a run of another host: its processes cannot be seen from here.
    """
    host = run.host or {}
    if run.status != "running" or host.get("name") != platform.node() or "pid" not in host:
        return False
    try:
        # The clock that start times are counted from is read to 10 ms, and may be stepped by a few.
        return abs(psutil.Process(host["pid"]).create_time() - host["pid_started"]) > 1.0
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
