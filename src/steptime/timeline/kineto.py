"""Reads traces that torch.profiler (Kineto) wrote: Chrome JSON, plain or gzip, the schemas of 2021 to today."""

from __future__ import annotations

import gc
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from steptime.timeline.timeline import DEVICE_KINDS, EventKind, Inputs, Lane, Timeline, TraceQuality, build, merge


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

    A rank comes from the trace's distributedInfo; traces that lack one, or share one, are numbered in the order given.

    Args:
        path: JSON or gzip files.
        python: also read python_function events (the bulk of a trace with stacks; they name the lines of idle time).

    Raises:
        SteptimeError: a file that is missing, truncated, not JSON, or has no event with a time.
    """
    paths = [Path(each) for each in path] if isinstance(path, list) else [Path(path)]
    if not paths:
        raise SteptimeError("no trace was given")
    read = [_read(each, python) for each in paths]
    told = [rank for rank, _ in read if rank is not None]
    ranks = told if len(set(told)) == len(read) else list(range(len(read)))
    return merge([_as_rank(timeline, rank) for rank, (_, timeline) in zip(ranks, read, strict=True)])


def _as_rank(timeline: Timeline, rank: int) -> Timeline:
    lanes = tuple(replace(lane, rank=rank) for lane in timeline.lanes)
    return replace(timeline, rank=np.full(len(timeline), rank, np.int32), lanes=lanes)


def _read(path: Path, python: bool) -> tuple[int | None, Timeline]:
    trace = _decode(path, _content(path))
    try:
        with _without_collector():
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
        mend = "" if path.exists() else "to run a script, put it behind --: steptime explain -- python train.py"
        raise SteptimeError(f"cannot read the trace: {error.strerror}", where=str(path), mend=mend) from None
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


class _Columns:
    """Collects a trace's events into the columns of a Timeline."""

    def __init__(self, trace: _Trace, python: bool) -> None:
        self.names: dict[str, int] = {}
        self.lanes: dict[tuple[str, str, bool], int] = {}
        self.inputs: dict[tuple[bytes, bytes, bytes], int] = {}
        self.labels: dict[tuple[Any, Any], str] = {}
        self.python = python
        self.skipped = 0
        self.ignored = 0
        self.without_time = 0
        self.trace = trace

    def timeline(self) -> Timeline:
        """Raises ValueError on times that are no numbers."""
        kept, kinds = self._keep()
        args = [event.args or _NO_ARGS for event in kept]
        durations = to_nanoseconds([event.dur if bytes(event.dur) else _ZERO for event in kept])
        columns: dict[str, Any] = {
            "start_ns": to_nanoseconds([event.ts for event in kept]) + self.trace.base_ns,
            "duration_ns": np.maximum(durations, 0),
            "kind": np.array(kinds, np.uint8),
            "name": self._names([event.name for event in kept]),
            "lane": self._lanes_of(kept),
            "correlation": _integers([each.correlation for each in args]),
            "external": _integers([each.external if each.external != -1 else each.external_2021 for each in args]),
            "sequence": _integers([each.sequence for each in args]),
            "inputs": self._inputs_of(args),
            "bytes": _integers([_message_bytes(each) if each.collective else each.bytes for each in args]),
            "group_size": np.maximum(_integers([each.group_size for each in args]), 0),
            "module": self._names([str(each.module) if each.module else None for each in args]),
            "source": self._names([_line(str(each.stack)) if each.stack else None for each in args]),
        }
        self._reclassify(columns, kept)
        distributed = self.trace.distributed
        return build(
            columns=columns,
            names=tuple(self.names),
            lanes=tuple(self._lane(*key) for key in self.lanes),
            input_table=tuple(_inputs(*key) for key in self.inputs),
            device=self.trace.devices[0].name if self.trace.devices else "",
            world_size=(distributed.world_size if distributed else None) or 1,
            quality=self._quality(int((durations < 0).sum()), columns),
        )

    def _keep(self) -> tuple[list[_Event], list[int]]:
        """The events that have a kind and a time, and their kinds."""
        kept: list[_Event] = []
        kinds: list[int] = []
        for event in self.trace.events:
            kind = _KINDS.get(event.cat) if event.ph == "X" else None
            if kind is None:
                self.ignored += 1
                if event.name == "thread_name" and event.args is not None:
                    self.labels[(str(event.pid), str(event.tid))] = str(event.args.name)
            elif kind == _PYTHON and not self.python:
                self.skipped += 1
            elif not bytes(event.ts):
                self.without_time += 1
            else:
                kept.append(event)
                kinds.append(kind)
        return kept, kinds

    def _names(self, texts: list[str] | list[str | None]) -> np.ndarray:
        numbered = self.names
        return np.array([-1 if text is None else numbered.setdefault(text, len(numbered)) for text in texts], np.int32)

    def _lanes_of(self, events: list[_Event]) -> np.ndarray:
        numbered = self.lanes
        return np.array(
            [
                numbered.setdefault((str(event.pid), str(event.tid), event.cat in DEVICE_CATEGORIES), len(numbered))
                for event in events
            ],
            np.int32,
        )

    def _inputs_of(self, args: list[_Args]) -> np.ndarray:
        numbered = self.inputs
        return np.array(
            [
                numbered.setdefault((dims, bytes(each.types), bytes(each.concrete)), len(numbered)) if dims else -1
                for each, dims in zip(args, [bytes(each.dims) for each in args], strict=True)
            ],
            np.int32,
        )

    def _reclassify(self, columns: dict[str, Any], kept: list[_Event]) -> None:
        """Kernels that communicate, by metadata or name; the annotations that 2021 wrote as operators."""
        kinds, names = columns["kind"], columns["name"]
        texts = list(self.names)
        moves = np.array([is_communication(text) for text in texts], bool)
        marked = np.array([event.args is not None and bool(event.args.collective) for event in kept], bool)
        kinds[(kinds == EventKind.KERNEL) & (moves[names] | marked)] = EventKind.COMMUNICATION
        annotates = np.array([text.startswith(ANNOTATION_PREFIXES) for text in texts], bool)
        kinds[(kinds == EventKind.CPU_OP) & annotates[names]] = EventKind.ANNOTATION

    def _lane(self, pid: str, tid: str, is_device: bool) -> Lane:
        number = tid.removeprefix("stream ").strip()
        return Lane(
            rank=0,
            pid=int(pid) if pid.lstrip("-").isdigit() else pid,
            tid=int(number) if number.lstrip("-").isdigit() else tid,
            label=self.labels.get((pid, tid), ""),
            is_device=is_device,
        )

    def _quality(self, negative: int, columns: dict[str, Any]) -> TraceQuality:
        kinds, links = columns["kind"], columns["correlation"]
        launched = links[(kinds == EventKind.RUNTIME) & (links >= 0)]
        kernels = np.isin(kinds, DEVICE_KINDS)
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
            events=len(kinds),
            ignored=self.ignored,
            python_skipped=self.skipped,
            without_time=self.without_time,
            negative_durations=negative,
            unlinked_kernels=unlinked,
            notes=tuple(notes),
        )


_NO_ARGS = _Args()
_ZERO = msgspec.Raw(b"0")
_KINDS = {
    category: int(kind) for category, kind in BY_CATEGORY.items()
}  # an enum member is slow to look up and compare
_PYTHON = int(EventKind.PYTHON)

_ELEMENT_BYTES = {
    "Float": 4,
    "float": 4,
    "Half": 2,
    "BFloat16": 2,
    "Double": 8,
    "Long": 8,
    "Int": 4,
    "Byte": 1,
    "Char": 1,
}


def _message_bytes(args: _Args) -> int:
    """Size of a collective's input on this rank; -1 where the element type is not known."""
    size = _ELEMENT_BYTES.get(str(args.element_type))
    return -1 if size is None else _integer(args.elements) * size


def _integers(values: list[Any]) -> np.ndarray:
    try:
        return np.array(values, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_integer(value) for value in values], np.int64)


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
