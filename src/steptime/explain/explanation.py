"""The Explanation: what `steptime explain` found out, as one record that every later room reads.

Its JSON (`to_json`) is what `--json` prints. Units stand in the key names: `_ns` int nanoseconds, `_bytes`, `_flops`
counts per step, `_per_s` decimal rates. Times are per step unless the key says otherwise. Definitions of every number:
docs/definitions.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from steptime.explain.cells import Breakdown

VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """The step time: median of `n` steps; `low_ns`..`high_ns` is the 95 % bootstrap interval of the median.

    `measured` is "untraced" (a session) or "traced" (all that a trace alone can tell).
    """

    median_ns: int
    low_ns: int
    high_ns: int
    n: int
    measured: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectedCell:
    """A cell of the untraced step: the median step's share with the overhead of tracing taken out.

    `low_ns <= ns <= high_ns`; the cells' `ns` sum to `step.median_ns` exactly. `events` is per step.
    """

    resource: str
    group: str
    phase: str
    ns: int
    low_ns: int
    high_ns: int
    events: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OpRow:
    """All calls of one op with the same input shapes in one phase.

    `self_ns` is per step, overhead-corrected, without the op's children; `low_ns`..`high_ns` its interval;
    `traced_self_ns` is what the trace shows. `shapes` are the tensor inputs', `dtype` is the first tensor input's.
    `flops` and `bytes` are per step over all calls; None where no formula is known (never a guess).
    `caller` is the outermost aten op around it ("aten::scaled_dot_product_attention" around its aten::bmm), or itself.
    """

    name: str
    caller: str
    group: str
    phase: str
    resource: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    calls_per_step: float
    self_ns: int
    low_ns: int
    high_ns: int
    traced_self_ns: int
    flops: int | None
    bytes: int | None
    module: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """Idle time of one cause, `calls_per_step` gaps a step.

    `source` names the Python function or line (where stacks were recorded), else the ops before and after.
    """

    cause: str
    phase: str
    ns: int
    low_ns: int
    high_ns: int
    calls_per_step: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Utilisation:
    """What the ops of one dtype achieved against this machine's ceilings.

    `work` is "arithmetic" (ops with a FLOP formula) or "streaming" (the others, which only move bytes; flops 0).
    `flops` and `bytes` are per step, `compute_ns` is the corrected time of these ops.
    `ceiling_*` come from `steptime probe` (None: not probed). `intensity` is FLOPs per byte; `ridge` the intensity at
    which the two ceilings meet; `side` is "compute" or "memory" (None without ceilings).
    """

    work: str
    dtype: str
    flops: int
    bytes: int
    compute_ns: int
    achieved_flops_per_s: float
    achieved_bytes_per_s: float
    ceiling_flops_per_s: float | None
    ceiling_bytes_per_s: float | None
    intensity: float
    ridge: float | None
    side: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRow:
    """One rank: its own untraced median step, its traced exposed communication and idle time per traced step."""

    rank: int
    pid: int
    step_ns: int
    traced_step_ns: int
    exposed_communication_ns: int
    exposed_copy_ns: int
    idle_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known about the script beside its times; None or empty: not seen.

    `loader`, `optimizers` and `process` are the agent's own records (ARCHITECTURE.md, `events.jsonl`, `process.json`).
    """

    device: str = ""
    world_size: int = 1
    torch: str = ""
    framework: str = ""
    threads: int | None = None
    optimizers: tuple[Mapping[str, Any], ...] = ()
    loader: Mapping[str, Any] = field(default_factory=dict)
    process: Mapping[str, Any] = field(default_factory=dict)
    losses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """One explained step, over all ranks.

    `breakdown` is the traced truth of the reference rank (it sums exactly); `corrected` is what predictions use: the
    same cells with the tracing overhead taken out, summing to `step.median_ns`. `inflation` = traced / untraced step
    (None when only a trace is known). `mfu` = sum over dtypes of (model FLOPs / ceiling FLOP/s) / step time (None
    without ceiling or formula). `stacks`: (the innermost line of the user's own code, share of the samples).
    `quality` describes the trace: what was read and what was left out.
    """

    step: StepTime
    traced_step_ns: int
    inflation: float | None
    breakdown: Breakdown
    corrected: tuple[CorrectedCell, ...]
    ops: tuple[OpRow, ...]
    gaps: tuple[Gap, ...]
    utilisation: tuple[Utilisation, ...]
    mfu: float | None
    ranks: tuple[RankRow, ...]
    facts: Facts
    verdict: str
    stacks: tuple[tuple[str, float], ...] = ()
    findings: tuple[Mapping[str, Any], ...] = ()
    quality: Mapping[str, Any] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def ns(self, *, resource: str | None = None, group: str | None = None, phase: str | None = None) -> int:
        """Corrected time per step of all cells that match."""
        return sum(
            cell.ns
            for cell in self.corrected
            if resource in (None, cell.resource) and group in (None, cell.group) and phase in (None, cell.phase)
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, keys as the fields are named; `version` grows when a key changes its meaning."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "breakdown"}
        plain = {name: _plain(value) for name, value in fields.items()}
        return {"version": VERSION, **plain, "breakdown": self.breakdown.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Explanation:
        """The Explanation that `to_json` wrote.

        Raises:
            SteptimeError: another version, a missing key or a value of the wrong type.
        """
        import msgspec

        from steptime.errors import SteptimeError

        if data.get("version") != VERSION:
            raise SteptimeError(
                f"an explanation of version {data.get('version')!r} cannot be read (this steptime reads {VERSION})"
            )
        try:
            return msgspec.convert(data, cls)
        except (msgspec.ValidationError, ValueError) as error:
            raise SteptimeError(f"not an explanation: {error}") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
