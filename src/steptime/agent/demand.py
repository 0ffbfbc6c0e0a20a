"""A trace on demand: a running process that was started under steptime listens on a socket of its owner's.

`<session>/demand/<pid>.sock`, folder 0700, socket 0600. One JSON line `{"trace": n}` is answered by one line,
`{"trace": path}` once n steps have been traced, or `{"problem": ...}`.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress

LONGEST_WAIT_S = 600.0


class TraceRequests:
    """A daemon thread that takes requests; the training loop asks `wanted` at each boundary (one attribute read)."""

    def __init__(self, session_folder: str) -> None:
        """Raises OSError when the socket cannot be made (a path longer than a Unix socket's)."""
        folder = os.path.join(session_folder, "demand")
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.path = os.path.join(folder, f"{os.getpid()}.sock")
        self.wanted = 0
        self._answer = ""
        self._done = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        os.chmod(self.path, 0o600)
        self._listener.listen(1)
        threading.Thread(target=self._serve, name="steptime-demand", daemon=True).start()

    def taken(self) -> int:
        """The training loop starts tracing: the number of steps asked for."""
        steps, self.wanted = self.wanted, 0
        return steps

    def finished(self, path: str | None) -> None:
        """The training loop has written the trace."""
        self._answer = path or ""
        self._done.set()

    def close(self) -> None:
        """The process ends: the socket's name goes."""
        with suppress(OSError):
            os.unlink(self.path)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with suppress(OSError, ValueError, KeyError, TypeError), connection:
                connection.settimeout(10.0)
                request = json.loads(connection.makefile("rb").readline())
                self._done.clear()
                self.wanted = max(1, min(int(request["trace"]), 1000))
                if self._done.wait(LONGEST_WAIT_S) and self._answer:
                    answer = {"trace": self._answer}
                else:
                    self.wanted = 0
                    answer = {"problem": "no step boundary was reached, or the trace could not be written"}
                connection.sendall(json.dumps(answer).encode() + b"\n")
