"""How the agent ends a process that has done what it was started for: at a step boundary, without the script's help."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

from steptime.agent.process import rank_of_this_process

PEERS_S = 10.0
ABANDONED = 70
"""Exit code of a trial that cannot be measured: EX_SOFTWARE of sysexits.h."""


def stop_process(session_folder: str, flush: Callable[[], None]) -> None:
    """Flushes, ends the workers that the script started, and leaves with exit code 0; never returns.

    `os._exit`: an exception thrown into the script could be caught by it, and its clean-up would save checkpoints of
    a trial. Ranks leave together: the peer of a finished collective may still be reading from this one's socket.
    """
    with contextlib.suppress(Exception):
        flush()
    with contextlib.suppress(Exception):
        _wait_for_peers(session_folder)
    with contextlib.suppress(Exception):
        _end_children()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


def abandon_trial(why: str) -> NoReturn:
    """Ends a trial that cannot be measured, workers too: it would not stop at its step, and train for hours unseen."""
    with contextlib.suppress(Exception):
        print(f"steptime: the trial cannot be measured: {why}", file=sys.stderr, flush=True)
    with contextlib.suppress(Exception):
        _end_children()
    os._exit(ABANDONED)


def _wait_for_peers(session_folder: str) -> None:
    rank = rank_of_this_process()
    peers = rank["local_world_size"]
    if peers <= 1:
        return
    folder = os.path.join(session_folder, "stopping")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, str(rank["rank"])), "wb"):
        pass
    until = time.monotonic() + PEERS_S
    while len(os.listdir(folder)) < peers and time.monotonic() < until:
        time.sleep(0.005)


def _end_children() -> None:
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(timeout=2.0)
        if child.is_alive():
            child.kill()
