"""Reads what the agents left in a session folder: whole where they ended well, salvaged where they were killed."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.agent.steps import COUNT_OFFSET, HEADER_BYTES, MAGIC, RECORD
from steptime.attach.watch import Unattached
from steptime.errors import SteptimeError

Int64s = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """The steps of one rank, one entry a training step; times in ns of CLOCK_MONOTONIC."""

    start_ns: Int64s
    end_ns: Int64s
    window: Int64s
    flags: Int64s

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Int64s:
        """End minus start."""
        return self.end_ns - self.start_ns

    def durations_of(self, window: int) -> Int64s:
        """Durations (ns) of the steps of one window, settling steps left out."""
        return self.duration_ns[(self.window == window) & (self.flags & 2 == 0)]


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """What one process measured."""

    rank: int
    world_size: int
    pid: int
    folder: Path
    process: dict[str, Any]
    steps: StepTable
    losses: dict[str, NDArray[np.float64]]
    """By call site of `backward` (`file:line`); one entry a training step, NaN where it was not reached."""
    trace: Path | None
    stacks: Path | None
    audit: dict[str, Any]
    applied: list[dict[str, Any]]
    seeded: bool | None
    """Whether the script sets a seed; None when the process was killed before it could say."""
    events: list[dict[str, Any]] = field(repr=False)

    def events_named(self, name: str) -> list[dict[str, Any]]:
        """The events of one kind, in the order in which they happened."""
        return [event for event in self.events if event["event"] == name]


@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    """Everything a session left, ranks in order."""

    folder: Path
    session: dict[str, Any]
    ranks: tuple[RankRecord, ...]
    unattached: tuple[Unattached, ...]
    torch_processes: int
    """How many processes below the command were seen with torch loaded (a short one can be missed)."""
    escaped: tuple[str, ...]
    """Files written outside the overlay although the session redirects writes."""
    dropped: list[str]
    """What could not be read, one line each."""


def read_session(folder: Path) -> SessionRecord:
    """Reads a session folder, whatever state its processes left it in.

    Raises:
        SteptimeError: when it is no session folder.
    """
    dropped: list[str] = []
    try:
        session = json.loads((folder / "session.json").read_text())
    except (OSError, ValueError) as problem:
        raise SteptimeError("not a session folder: session.json cannot be read", where=str(folder)) from problem
    ranks = [rank for path in sorted((folder / "ranks").glob("*-*")) if (rank := _read_rank(path, dropped)) is not None]
    ranks.sort(key=lambda rank: (rank.rank, rank.process.get("clock", {}).get("perf_counter_ns", 0)))
    dropped += [
        f"process {fault.stem.removeprefix('fault-')}: {fault.read_text().strip().splitlines()[-1]}"
        for fault in sorted(folder.glob("fault-*.txt"))
    ]
    watch: dict[str, Any] = {}
    if (folder / "watch.json").exists():
        try:
            watch = json.loads((folder / "watch.json").read_text())
        except (OSError, ValueError):
            dropped.append("watch.json: unreadable")
    return SessionRecord(
        folder=folder,
        session=session,
        ranks=tuple(ranks),
        unattached=tuple(Unattached(**item) for item in watch.get("unattached", ())),
        torch_processes=watch.get("torch_processes", 0),
        escaped=tuple(
            sorted({line for path in folder.glob("escaped-*.txt") for line in path.read_text().splitlines()})
        ),
        dropped=dropped,
    )


def _read_rank(folder: Path, dropped: list[str]) -> RankRecord | None:
    try:
        process = json.loads((folder / "process.json").read_text())
    except (OSError, ValueError):
        dropped.append(f"{folder.name}: process.json is unreadable; the rank is left out")
        return None
    events = _read_events(folder / "events.jsonl", dropped)
    steps = _read_steps(folder / "steps.bin", dropped)
    trace, stacks = folder / "trace.json.gz", folder / "stacks.txt"
    audits = [event for event in events if event["event"] == "audit"]
    ends = [event for event in events if event["event"] == "end"]
    return RankRecord(
        rank=process["rank"],
        world_size=process["world_size"],
        pid=process["pid"],
        folder=folder,
        process=process,
        steps=steps,
        losses=_losses(events, len(steps)),
        trace=trace if trace.exists() else None,
        stacks=stacks if stacks.exists() else None,
        audit=audits[-1] if audits else {},
        applied=[event for event in events if event["event"] == "applied"],
        seeded=ends[-1].get("seeded") if ends else None,
        events=events,
    )


def _read_events(path: Path, dropped: list[str]) -> list[dict[str, Any]]:
    events = []
    broken = 0
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        dropped.append(f"{path.parent.name}: events.jsonl is unreadable")
        return []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            broken += 1
            continue
        if isinstance(event, dict) and "event" in event:
            events.append(event)
    if broken:
        dropped.append(f"{path.parent.name}: {broken} of {len(lines)} lines of events.jsonl are broken")
    return events


def _read_steps(path: Path, dropped: list[str]) -> StepTable:
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    table = np.zeros((0, 4), dtype=np.int64)
    if data[: len(MAGIC)] == MAGIC and len(data) >= HEADER_BYTES:
        (count,) = struct.unpack_from("<q", data, COUNT_OFFSET)
        whole = min(count, (len(data) - HEADER_BYTES) // RECORD.size)
        table = np.frombuffer(data, dtype="<i8", count=4 * whole, offset=HEADER_BYTES).reshape(-1, 4)
        if whole < count:
            dropped.append(f"{path.parent.name}: {count - whole} of {count} steps are cut off from steps.bin")
    elif data:
        dropped.append(f"{path.parent.name}: steps.bin has no header of ours")
    start, end, window, flags = (np.ascontiguousarray(column, dtype=np.int64) for column in table.T)
    return StepTable(start_ns=start, end_ns=end, window=window, flags=flags)


def _losses(events: list[dict[str, Any]], steps: int) -> dict[str, NDArray[np.float64]]:
    series: dict[str, NDArray[np.float64]] = {}
    for event in events:
        if event["event"] != "losses":
            continue
        first = event["first_step"]
        for site, values in event["values"].items():
            target = series.setdefault(site, np.full(steps, np.nan))
            kept = values[: max(0, steps - first)]
            target[first : first + len(kept)] = kept
    return series
