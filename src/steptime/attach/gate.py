"""The host side of the gate: lets one of several held processes run a block of steps at a time.

    with GateServer(folder / "gate") as gate:
        a = gate.run_block("baseline", 20)      # a[rank] = 20 step durations in ns
        b = gate.run_block("candidate", 20)
        gate.stop()

A session is known by the name of its folder. No threads: sockets are served while a block is being waited for.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from steptime.errors import SteptimeError

LONGEST_PATH = 100  # sockaddr_un holds 108 bytes


@dataclass(kw_only=True)
class _Rank:
    """One held (or running) process."""

    connection: socket.socket
    rank: int = -1
    pid: int = 0
    step: int = 0
    waiting: bool = False
    gone: bool = False
    block: list[int] = field(default_factory=list)
    unread: bytes = b""


class GateServer:
    """Listens on a Unix socket readable by its owner only."""

    def __init__(self, path: Path) -> None:
        """Raises SteptimeError when the socket cannot be made."""
        if len(str(path)) > LONGEST_PATH:
            raise SteptimeError("the path of a Unix socket is too long", where=str(path), mend="use a shorter folder")
        self.path = path
        self._sessions: dict[str, dict[int, _Rank]] = {}
        self._sizes: dict[str, int] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(path))
            path.chmod(0o600)
            self._listener.listen(256)
        except OSError as problem:
            self._listener.close()
            raise SteptimeError(f"the gate cannot be opened: {problem.strerror}", where=str(path)) from problem
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def __enter__(self) -> GateServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def wait_until_held(
        self, session: str, *, timeout_s: float = 600.0, alive: Callable[[], bool] = lambda: True
    ) -> None:
        """Waits until every rank of the session stands at the gate.

        Args:
            session: name of the session folder.
            timeout_s: how long the slowest rank may take.
            alive: says whether the launched command still runs; asked now and then.

        Raises:
            SteptimeError: when the script ends first, or takes longer.
        """
        until = time.monotonic() + timeout_s
        while not self._all_waiting(session):
            if any(rank.gone for rank in self._sessions.get(session, {}).values()) or not alive():
                self._serve(0.2)  # what was sent just before the end
                if self._all_waiting(session):
                    return
                raise SteptimeError("the script ended before its steps were measured", where=session)
            if time.monotonic() > until:
                raise SteptimeError(f"no step boundary was reached in {timeout_s:.0f} s", where=session)
            self._serve(0.2)

    def run_block(
        self,
        session: str,
        steps: int,
        *,
        timeout_s: float = 600.0,
        alive: Callable[[], bool] = lambda: True,
    ) -> list[list[int]]:
        """Lets every rank of a session run `steps` steps (and a settling one before them, which is not returned).

        Returns:
            The step durations in ns, one list a rank, in rank order. Their sum is the block's time; on an accelerator,
            which is waited for at the block's ends only, a single step's is when its work was queued.

        Raises:
            SteptimeError: as `wait_until_held`.
        """
        self.wait_until_held(session, timeout_s=timeout_s, alive=alive)
        ranks = self._sessions[session]
        for rank in ranks.values():
            self._send(rank, {"run": steps + 1})
        self.wait_until_held(session, timeout_s=timeout_s, alive=alive)
        return [ranks[number].block[1:] for number in sorted(ranks)]

    def stop(self, session: str | None = None) -> None:
        """Ends the processes of one session, or of all; those that are not at the gate end when they reach it."""
        for name in [session] if session is not None else list(self._sessions):
            for rank in self._sessions.get(name, {}).values():
                self._send(rank, {"stop": True})

    def close(self) -> None:
        """Closes the socket; a process that comes to the gate afterwards stops."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        with suppress(FileNotFoundError):
            self.path.unlink()

    def _all_waiting(self, session: str) -> bool:
        ranks = self._sessions.get(session, {})
        return len(ranks) == self._sizes.get(session, -1) and all(rank.waiting for rank in ranks.values())

    def _send(self, rank: _Rank, message: dict[str, object]) -> None:
        rank.waiting = False
        try:
            rank.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            rank.gone = True

    def _serve(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                connection, _address = self._listener.accept()
                self._selector.register(connection, selectors.EVENT_READ, _Rank(connection=connection))
                continue
            rank: _Rank = key.data
            try:
                data = rank.connection.recv(1 << 20)
            except OSError:
                data = b""
            if not data:
                rank.gone = True
                self._selector.unregister(rank.connection)
                rank.connection.close()
                continue
            rank.unread += data
            *lines, rank.unread = rank.unread.split(b"\n")
            for line in lines:
                self._hear(rank, json.loads(line))

    def _hear(self, rank: _Rank, message: dict[str, object]) -> None:
        session = str(message["session"])
        rank.rank, rank.pid, rank.step = int(str(message["rank"])), int(str(message["pid"])), int(str(message["step"]))
        block = message["block"]
        rank.block = [int(ns) for ns in block] if isinstance(block, list) else []
        rank.waiting = True
        self._sessions.setdefault(session, {})[rank.rank] = rank
        self._sizes[session] = int(str(message["world_size"]))
