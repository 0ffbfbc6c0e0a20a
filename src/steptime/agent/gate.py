"""The gate: between two blocks of an interleaved A/B the process stands still at a step boundary.

One Unix stream connection a rank. We send `{"session", "rank", "pid", "world_size", "step", "block": [ns, ...]}` and
wait for `{"run": k}` or `{"stop": true}`; a host that has gone away means stop.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

from steptime.agent.process import rank_of_this_process


def wait_for_device() -> None:
    """Waits until an accelerator has done what was queued: the block's last step ends when its work ends."""
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Gate:
    """The permit to run steps, asked for when it is used up."""

    def __init__(self, path: str, session_folder: str) -> None:
        self._path = path
        self._session = os.path.basename(session_folder)
        self._connection: socket.socket | None = None
        self._reader: Any = None
        self._permit = 0
        self._block: list[int] = []

    @property
    def block_ends(self) -> bool:
        """The step that is ending is the block's last."""
        return self._permit <= 1

    def after_step(self, duration_ns: int, step: int) -> str:
        """`go` (nothing happened), `held` (the process stood still; the next step settles) or `stop`."""
        self._block.append(duration_ns)
        self._permit -= 1
        if self._permit > 0:
            return "go"
        feeding: Any = sys.modules.get("steptime.agent.apply.prefetch")
        if feeding is not None:
            feeding.hold()
        try:
            answer = self._ask(step)
        finally:
            if feeding is not None:
                feeding.release()
        if answer.get("stop"):
            return "stop"
        self._permit = int(answer["run"])
        self._block = []
        return "held"

    def _ask(self, step: int) -> dict[str, Any]:
        try:
            if self._connection is None:
                self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._connection.connect(self._path)
                self._reader = self._connection.makefile("rb")
            rank = rank_of_this_process()
            message = {
                "session": self._session,
                "rank": rank["rank"],
                "pid": os.getpid(),
                "world_size": rank["world_size"],
                "step": step,
                "block": self._block,
            }
            self._connection.sendall(json.dumps(message).encode() + b"\n")
            line = self._reader.readline()
        except OSError:
            return {"stop": True}
        return json.loads(line) if line else {"stop": True}
