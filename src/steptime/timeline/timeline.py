"""The Timeline: what happened when, as columns. A trace is read into one; a simulated step is one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]


class EventKind(IntEnum):
    """What an event is; KERNEL to COMMUNICATION run on a device, the others on the host."""

    CPU_OP = 0
    ANNOTATION = 1
    PYTHON = 2
    RUNTIME = 3
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    COMMUNICATION = 7
    SYNC = 8
    OVERHEAD = 9
    DEVICE_ANNOTATION = 10


DEVICE_KINDS = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET, EventKind.COMMUNICATION)
"""The kinds that keep a device busy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """A row of the trace: a host thread (`pid`, `tid`) or a device's stream (`pid` device index, `tid` stream)."""

    rank: int
    pid: int | str
    tid: int | str
    label: str
    is_device: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """The recorded inputs of an op: `shapes` and `types` have one entry an argument (() for a scalar or none).

    A TensorList argument is one entry whose shape is a tuple of shapes. `concrete` holds the scalars as text.
    """

    shapes: tuple[tuple, ...] = ()
    types: tuple[str, ...] = ()
    concrete: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceQuality:
    """What a reader kept and what it could not use; `notes` are sentences for the user."""

    events: int = 0
    ignored: int = 0
    python_skipped: int = 0
    without_time: int = 0
    negative_durations: int = 0
    unlinked_kernels: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """Events in columns of equal length, ordered by start, an enclosing event before what it encloses.

    `start_ns`, `duration_ns`: int64 nanoseconds (since the epoch where the trace tells it; one clock within a rank).
    `lane`: index into `lanes`. `name`, `module`, `source`: index into `names`, -1 where unknown.
    `correlation`, `external`, `sequence`: the profiler's links. `inputs`: index into `input_table`. -1 where absent.
    `bytes`: size of a copy or a collective's message, -1 where unknown; `group_size`: ranks of a collective, 0 unknown.
    `device`: the name that the first device gives itself, empty on a CPU. `world_size`: ranks of the job, also those
    without a trace here.
    """

    start_ns: Int64s
    duration_ns: Int64s
    rank: Int32s
    lane: Int32s
    kind: NDArray[np.uint8]
    name: Int32s
    correlation: Int64s
    external: Int64s
    sequence: Int64s
    inputs: Int32s
    bytes: Int64s
    group_size: Int32s
    module: Int32s
    source: Int32s
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    input_table: tuple[Inputs, ...] = ()
    device: str = ""
    world_size: int = 1
    quality: TraceQuality = field(default_factory=TraceQuality)

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def end_ns(self) -> Int64s:
        """Ends of the events; an event is the half-open interval [start, end)."""
        return self.start_ns + self.duration_ns

    @cached_property
    def on_device(self) -> Bools:
        """True for the events that keep a device busy."""
        return np.isin(self.kind, DEVICE_KINDS)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have events, ascending."""
        return tuple(int(rank) for rank in np.unique(self.rank))

    def where(self, mask: Bools) -> Timeline:
        """The events under the mask; tables and lanes stay."""
        columns = {f.name: getattr(self, f.name)[mask] for f in fields(self) if f.name in COLUMNS}
        return replace(self, **columns)

    def of_rank(self, rank: int) -> Timeline:
        """One rank's events."""
        return self if self.ranks == (rank,) else self.where(self.rank == rank)

    def text(self, event: int) -> str:
        """Name of an event."""
        return self.names[self.name[event]]


COLUMNS = {
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "rank": np.int32,
    "lane": np.int32,
    "kind": np.uint8,
    "name": np.int32,
    "correlation": np.int64,
    "external": np.int64,
    "sequence": np.int64,
    "inputs": np.int32,
    "bytes": np.int64,
    "group_size": np.int32,
    "module": np.int32,
    "source": np.int32,
}
"""The columns and their types."""

_ABSENT = {"group_size": 0, "rank": 0}


def build(
    *,
    columns: dict[str, object],
    names: tuple[str, ...],
    lanes: tuple[Lane, ...],
    input_table: tuple[Inputs, ...] = (),
    device: str = "",
    world_size: int = 1,
    quality: TraceQuality | None = None,
) -> Timeline:
    """A Timeline from columns in any order of events; columns left out are filled with "unknown".

    Raises:
        ValueError: unknown column, columns of different lengths, a negative duration.
    """
    unknown = set(columns) - set(COLUMNS)
    if unknown:
        raise ValueError(f"no such column: {', '.join(sorted(unknown))}")
    count = len(columns["start_ns"])  # pyright: ignore[reportArgumentType]  # any sequence that numpy takes
    arrays = {}
    for column, dtype in COLUMNS.items():
        given = columns.get(column)
        arrays[column] = np.full(count, _ABSENT.get(column, -1), dtype) if given is None else np.asarray(given, dtype)
        if arrays[column].shape != (count,):
            raise ValueError(f"column {column} has shape {arrays[column].shape}, expected ({count},)")
    if count and arrays["duration_ns"].min() < 0:
        raise ValueError("an event has a negative duration")
    order = np.lexsort((np.arange(count), -arrays["duration_ns"], arrays["start_ns"]))
    return Timeline(
        **{column: array[order] for column, array in arrays.items()},
        names=names,
        lanes=lanes,
        input_table=input_table,
        device=device,
        world_size=world_size,
        quality=quality or TraceQuality(events=count),
    )


def merge(timelines: list[Timeline]) -> Timeline:
    """One Timeline of several (the ranks of a job): tables are joined, clocks are left as they are."""
    if len(timelines) == 1:
        return timelines[0]
    names: dict[str, int] = {}
    lanes: list[Lane] = []
    table: list[Inputs] = []
    columns: dict[str, list[np.ndarray]] = {column: [] for column in COLUMNS}
    for timeline in timelines:
        renamed = np.array([names.setdefault(name, len(names)) for name in timeline.names] + [-1], np.int32)
        for column, parts in columns.items():
            values = getattr(timeline, column)
            if column in ("name", "module", "source"):
                values = renamed[values]  # -1 picks the last entry, which is -1
            elif column == "lane":
                values = values + len(lanes)
            elif column == "inputs":
                values = np.where(values < 0, -1, values + len(table))
            parts.append(values)
        lanes.extend(timeline.lanes)
        table.extend(timeline.input_table)
    qualities = [timeline.quality for timeline in timelines]
    counts = {
        f.name: sum(getattr(quality, f.name) for quality in qualities)
        for f in fields(TraceQuality)
        if f.name != "notes"
    }
    return build(
        columns={column: np.concatenate(parts) for column, parts in columns.items()},
        names=tuple(names),
        lanes=tuple(lanes),
        input_table=tuple(table),
        device=next((timeline.device for timeline in timelines if timeline.device), ""),
        world_size=max(timeline.world_size for timeline in timelines),
        quality=TraceQuality(**counts, notes=tuple(note for quality in qualities for note in quality.notes)),
    )
