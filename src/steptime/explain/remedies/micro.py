"""Runs the micro-measurements of all families at once, in the script's interpreter and with its number of threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from steptime.explain.remedies.remedy import Micro, Request, key

_MOST_S = 60.0
"""Building two kernels takes some seconds, each request under one."""


def measure(requests: Sequence[Request], *, python: str, threads: int) -> Micro:
    """The measurements of `requests`; none when the interpreter cannot run them (predictions then stay wide).

    Args:
        requests: duplicates are measured once.
        python: the script's interpreter; empty for this one.
        threads: intra-op threads.
    """
    unique = list({key(request): request for request in requests}.values())
    if not unique:
        return Micro()
    program = Path(__file__).with_name("measure.py")
    # a session's variables would arm the agent in this process too
    environment = {name: value for name, value in os.environ.items() if name != "STEPTIME_SESSION"}
    environment["OMP_NUM_THREADS"] = str(threads)
    try:
        done = subprocess.run(
            [python or sys.executable, str(program), str(threads)],
            input=json.dumps(unique),
            env=environment,
            capture_output=True,
            text=True,
            timeout=_MOST_S,
            check=True,
        )
        results = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError):
        return Micro()
    return Micro(results={key(r): found for r, found in zip(unique, results, strict=True) if "error" not in found})
