"""Reads traces that torch.profiler (Kineto) wrote: Chrome JSON, plain or gzip, the schemas of 2021 to today."""

from __future__ import annotations

import gc
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from steptime.errors import SteptimeError
from steptime.timeline.kinds import (
    ANNOTATION_PREFIXES,
    BY_CATEGORY,
    DEVICE_CATEGORIES,
    is_communication,
)
from steptime.timeline.microseconds import to_nanoseconds
from steptime.timeline.timeline import EventKind, Inputs, Lane, Timeline, TraceQuality, build, merge


class _Args(msgspec.Struct, gc=False):
    """The arguments that are read; all others are skipped by the decoder. Any: the schemas differ in the type."""

    correlation: Any = -1
    external: Any = msgspec.field(default=-1, name="External id")
    external_2021: Any = msgspec.field(default=-1, name="external id")
    sequence: Any = msgspec.field(default=-1, name="Sequence number")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Concrete Inputs")
    bytes: Any = -1
    collective: Any = msgspec.field(default="", name="Collective name")
    elements: Any = msgspec.field(default=-1, name="In msg nelems")
    element_type: Any = msgspec.field(default="", name="dtype")
    group_size: Any = msgspec.field(default=0, name="Group size")
    module: Any = msgspec.field(default="", name="Module Hierarchy")
    stack: Any = msgspec.field(default="", name="Call stack")
    name: Any = ""


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = 0
    tid: Any = 0
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: _Args | None = None


class _Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None


class _Device(msgspec.Struct):
    name: str = ""


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(default=0, name="baseTimeNanoseconds")
    distributed: _Distributed | None = msgspec.field(default=None, name="distributedInfo")
    devices: list[_Device] = msgspec.field(default_factory=list, name="deviceProperties")


def read_trace(path: str | Path | list[str] | list[Path], *, python: bool = False) -> Timeline:
    """The Timeline of one trace, or of several (the ranks of one job).

    `python`: also read python_function events (the bulk of a trace with stacks; they name the lines of idle time).
    A rank comes from the trace's distributedInfo; traces that lack one, or share one, are numbered in the order given.

    Raises:
        SteptimeError: a file that is missing, truncated, not JSON, or has no event with a time.
    """
    paths = [Path(each) for each in path] if isinstance(path, list) else [Path(path)]
    if not paths:
        raise SteptimeError("no trace was given")
    read = [_read(each, python) for each in paths]
    ranks = [rank for rank, _ in read]
    if None in ranks or len(set(ranks)) < len(ranks):
        ranks = list(range(len(read))) if len(read) > 1 else [0]
    return merge([_as_rank(timeline, rank) for rank, (_, timeline) in zip(ranks, read, strict=True) if rank is not None])


def _as_rank(timeline: Timeline, rank: int) -> Timeline:
    from dataclasses import replace

    lanes = tuple(replace(lane, rank=rank) for lane in timeline.lanes)
    return replace(timeline, rank=np.full(len(timeline), rank, np.int32), lanes=lanes)


def _read(path: Path, python: bool) -> tuple[int | None, Timeline]:
    trace = _decode(path, _content(path))
    try:
        timeline = _Columns(trace, python).timeline()
    except ValueError as error:
        raise SteptimeError(str(error), where=str(path)) from None
    if not len(timeline):
        raise SteptimeError("the trace holds no event with a time", where=str(path))
    return (trace.distributed.rank if trace.distributed else None), timeline


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SteptimeError(f"cannot read the trace: {error.strerror}", where=str(path)) from None
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise SteptimeError(
            f"the compressed trace is damaged or cut off ({error})", where=str(path), mend="write the trace again"
        ) from None


def _decode(path: Path, content: bytes) -> _Trace:
    with _without_collector():
        try:
            if content[:64].lstrip()[:1] == b"[":
                return _Trace(events=msgspec.json.decode(content, type=list[_Event]))
            return msgspec.json.decode(content, type=_Trace)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SteptimeError(
                f"not a readable Kineto trace ({error})", where=str(path), mend="write the trace again"
            ) from None


@contextmanager
def _without_collector() -> Iterator[None]:
    """A trace is millions of objects without cycles; the collector would walk them again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(slots=True)
class _Interned:
    """Values numbered in the order of their first appearance."""

    index: dict[Any, int] = field(default_factory=dict)

    def __call__(self, value: Any) -> int:
        return self.index.setdefault(value, len(self.index))


class _Columns:
    """Collects a trace's events into the columns of a Timeline."""

    def __init__(self, trace: _Trace, python: bool) -> None:
        self.names = _Interned()
        self.lanes = _Interned()
        self.inputs = _Interned()
        self.labels: dict[tuple[Any, Any], str] = {}
        self.python = python
        self.skipped = 0
        self.ignored = 0
        self.without_time = 0
        self.trace = trace

    def timeline(self) -> Timeline:
        """Raises ValueError on times that are no numbers."""
        kept, rows, texts = [], [], ([], [])
        for event in self.trace.events:
            if event.ph == "M" and event.name == "thread_name" and event.args is not None:
                self.labels[(str(event.pid), str(event.tid))] = str(event.args.name)
            kind = BY_CATEGORY.get(event.cat) if event.ph == "X" else None
            if kind is None or kind is EventKind.OTHER:
                self.ignored += 1
                continue
            if kind is EventKind.PYTHON and not self.python:
                self.skipped += 1
                continue
            if not bytes(event.ts):
                self.without_time += 1
                continue
            kept.append(event)
            texts[0].append(event.ts)
            texts[1].append(event.dur if bytes(event.dur) else msgspec.Raw(b"0"))
            rows.append(self._row(event, kind))
        durations = to_nanoseconds(texts[1])
        negative = int((durations < 0).sum())
        columns: dict[str, object] = dict(
            zip(
                ("kind", "name", "lane", "correlation", "external", "sequence", "inputs", "bytes", "group_size",
                 "module", "source"),
                zip(*rows, strict=True) if rows else [()] * 11,
                strict=True,
            )
        )  # fmt: skip
        columns["start_ns"] = to_nanoseconds(texts[0]) + self.trace.base_ns
        columns["duration_ns"] = np.maximum(durations, 0)
        distributed = self.trace.distributed
        return build(
            columns=columns,
            names=tuple(self.names.index),
            lanes=tuple(self._lane(*key) for key in self.lanes.index),
            input_table=tuple(_inputs(*key) for key in self.inputs.index),
            device=self.trace.devices[0].name if self.trace.devices else "",
            world_size=(distributed.world_size if distributed else None) or 1,
            quality=self._quality(len(rows), negative, columns),
        )

    def _row(self, event: _Event, kind: EventKind) -> tuple[int, ...]:
        name = event.name
        args = event.args or _NO_ARGS
        if kind is EventKind.CPU_OP and event.cat == "Operator" and name.startswith(ANNOTATION_PREFIXES):
            kind = EventKind.ANNOTATION
        elif kind is EventKind.KERNEL and (args.collective or is_communication(name)):
            kind = EventKind.COMMUNICATION
        external = args.external if args.external != -1 else args.external_2021
        return (
            kind,
            self.names(name),
            self.lanes((str(event.pid), str(event.tid), event.cat in DEVICE_CATEGORIES)),
            _integer(args.correlation),
            _integer(external),
            _integer(args.sequence),
            self.inputs((bytes(args.dims), bytes(args.types), bytes(args.concrete))) if bytes(args.dims) else -1,
            _message_bytes(args) if args.collective else _integer(args.bytes),
            max(0, _integer(args.group_size)),
            self.names(str(args.module)) if args.module else -1,
            self.names(_line(str(args.stack))) if args.stack else -1,
        )

    def _lane(self, pid: str, tid: str, is_device: bool) -> Lane:
        number = tid.removeprefix("stream ").strip()
        return Lane(
            rank=0,
            pid=int(pid) if pid.lstrip("-").isdigit() else pid,
            tid=int(number) if number.lstrip("-").isdigit() else tid,
            label=self.labels.get((pid, tid), ""),
            is_device=is_device,
        )

    def _quality(self, events: int, negative: int, columns: dict[str, Any]) -> TraceQuality:
        kinds = np.array(columns["kind"], np.uint8)
        links = np.array(columns["correlation"], np.int64)
        launched = links[(kinds == EventKind.RUNTIME) & (links >= 0)]
        kernels = np.isin(kinds, (EventKind.KERNEL, EventKind.COMMUNICATION, EventKind.MEMCPY, EventKind.MEMSET))
        unlinked = int((kernels & ~np.isin(links, launched)).sum())
        notes = []
        if negative:
            notes.append(f"{negative} events have a negative duration; they count as 0 ns")
        if self.without_time:
            notes.append(f"{self.without_time} events without a time were left out")
        if unlinked:
            notes.append(
                f"{unlinked} of {int(kernels.sum())} device events have no launch in the trace (started before it, "
                "or the links were not recorded); their time counts, their phase is not known"
            )
        return TraceQuality(
            events=events,
            ignored=self.ignored,
            python_skipped=self.skipped,
            without_time=self.without_time,
            negative_durations=negative,
            unlinked_kernels=unlinked,
            notes=tuple(notes),
        )


_NO_ARGS = _Args()

_ELEMENT_BYTES = {"Float": 4, "float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Long": 8, "Int": 4, "Byte": 1, "Char": 1}


def _message_bytes(args: _Args) -> int:
    """Size of a collective's input on this rank; -1 where the element type is not known."""
    size = _ELEMENT_BYTES.get(str(args.element_type))
    return -1 if size is None else _integer(args.elements) * size


def _integer(value: Any) -> int:
    """A link or a size as int64; -1 for what is none (2021 wrote some as text, `Comms Id` may exceed int64)."""
    try:
        number = int(value)
    except (TypeError, ValueError):
        return -1
    return number if -(2**63) <= number < 2**63 else -1


def _inputs(dims: bytes, types: bytes, concrete: bytes) -> Inputs:
    return Inputs(
        shapes=_tuples(msgspec.json.decode(dims)),
        types=tuple(map(str, msgspec.json.decode(types))) if types else (),
        concrete=tuple(map(str, msgspec.json.decode(concrete))) if concrete else (),
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _line(stack: str) -> str:
    """The innermost frame of a recorded call stack that is not torch's own: "train.py(12): forward"."""
    frames = [frame.strip() for frame in stack.split(";") if frame.strip()]
    own = [frame for frame in frames if "/torch/" not in frame and "site-packages" not in frame]
    return (own or frames or [""])[0]
