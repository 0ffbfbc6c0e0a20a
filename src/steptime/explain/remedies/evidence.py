"""`Evidence`: the explained step as the remedies see it: items with a time, which a kept remedy makes smaller."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from steptime.explain.explanation import Explanation

PARALLEL_GRAIN = 32768
"""Elements below which torch runs an elementwise CPU op on one thread (at::internal::GRAIN_SIZE)."""

Claims = tuple[tuple[int, float], ...]
"""What a remedy takes away: (index into `Evidence.items`, share of the item's time that goes)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One share of the step: all calls of an op at one shape, a cause of idleness, or exposed communication or copy.

    `kind` is "op", "idle", "exposed_communication" or "exposed_copy"; `name` the op, the cause or the collective.
    Times are nanoseconds a step; `high_ns` is the upper end of what the overhead correction leaves possible.
    """

    kind: str
    name: str
    group: str
    phase: str
    ns: float
    high_ns: float = 0.0
    calls: float = 0.0
    shapes: tuple[tuple[int, ...], ...] = ()
    dtype: str = ""
    caller: str = ""
    bytes: int | None = None
    source: str = ""
    module: str = ""

    @property
    def elements(self) -> int:
        """Elements of the largest tensor input."""
        return max((math.prod(shape) for shape in self.shapes), default=0)

    @property
    def serial(self) -> bool:
        """Whether torch keeps it on one thread: random numbers (one Mersenne twister) and small tensors."""
        return self.kind != "op" or self.group == "random" or self.elements < PARALLEL_GRAIN


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The step that predictions start from: `items` sum to `step_ns`.

    Args:
        cores: logical CPUs that one rank has for itself.
        threads: intra-op threads of the process.
        contention: how much slower ops run in the step than alone in a micro-measurement (cold caches, other
            threads); 1 until the first comparison was possible.
        kept: what kept remedies have saved, by name, ns a step.
        facts: what else is known: `device`, `world_size`, `optimizers`, `loader`, `framework`, `torch`, `python`.
    """

    step_ns: float
    items: tuple[Item, ...]
    cores: int
    threads: int
    contention: float = 1.0
    kept: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def where(self, test: Callable[[Item], bool]) -> list[tuple[int, Item]]:
        """The items that pass `test`, with their indices."""
        return [(i, item) for i, item in enumerate(self.items) if test(item)]

    def at(self, step_ns: float) -> Evidence:
        """The same step on a machine that has become slower or faster since: all of it takes in proportion, and so
        would an op that was measured alone.
        """
        factor = step_ns / self.step_ns
        items = tuple(replace(item, ns=item.ns * factor, high_ns=item.high_ns * factor) for item in self.items)
        return replace(self, step_ns=step_ns, items=items, contention=self.contention * factor)

    def after(self, claims: Claims, *, step_ns: float, remedy: str = "") -> Evidence:
        """The step that is left when `claims` are gone and `step_ns` was measured; the rest is scaled to sum to it.

        `remedy`: the name of the kept one.
        """
        ns = [item.ns for item in self.items]
        for index, share in claims:
            ns[index] *= 1 - min(max(share, 0.0), 1.0)
        left = sum(ns)
        scale = step_ns / left if left else 0.0
        items = tuple(
            replace(item, ns=value * scale, high_ns=max(item.high_ns - item.ns, 0.0) * scale + value * scale)
            for item, value in zip(self.items, ns, strict=True)
        )
        kept = {**self.kept, remedy: self.step_ns - step_ns} if remedy else self.kept
        return replace(self, step_ns=step_ns, items=items, kept=kept)


def evidence_of(explanation: Explanation, *, cores: int, python: str = "") -> Evidence:
    """The evidence in an explanation.

    Args:
        explanation: of any script.
        cores: logical CPUs of the whole job on this node; they are shared out to its ranks.
        python: the script's interpreter.
    """
    facts = explanation.facts
    items = [
        Item(
            kind="op",
            name=row.name,
            group=row.group,
            phase=row.phase,
            ns=float(row.self_ns),
            high_ns=float(row.high_ns),
            calls=row.calls_per_step,
            shapes=tuple(tuple(shape) for shape in row.shapes),
            dtype=row.dtype,
            caller=row.caller,
            bytes=row.bytes,
            source=row.source,
            module=row.module,
        )
        for row in explanation.ops
        if row.resource == "compute"
    ]
    items += [
        Item(
            kind="idle",
            name=gap.cause,
            group="idle",
            phase=gap.phase,
            ns=float(gap.ns),
            high_ns=float(gap.high_ns),
            calls=gap.calls_per_step,
            source=gap.source,
        )
        for gap in explanation.gaps
    ]
    items += [
        Item(
            kind=cell.resource,
            name=cell.group,
            group=cell.group,
            phase=cell.phase,
            ns=float(cell.ns),
            high_ns=float(cell.high_ns),
        )
        for cell in explanation.corrected
        if cell.resource.startswith("exposed_")
    ]
    step_ns = float(explanation.step.median_ns)
    found = sum(item.ns for item in items)
    if found > step_ns:
        items = [replace(item, ns=item.ns * step_ns / found) for item in items]
    elif found < step_ns:
        # the tables may leave out small rows; what is missing belongs to no remedy
        items.append(Item(kind="idle", name="other", group="idle", phase="other", ns=step_ns - found))
    ranks = max(facts.world_size, 1)
    each = max(cores // ranks, 1)
    return Evidence(
        step_ns=step_ns,
        items=tuple(items),
        cores=each,
        threads=facts.threads or each,
        facts={
            "device": facts.device or "cpu",
            "world_size": facts.world_size,
            "optimizers": facts.optimizers,
            "loader": facts.loader,
            "framework": facts.framework,
            "torch": facts.torch,
            "process": facts.process,
            "python": python,
        },
    )


def total(found: Iterable[tuple[int, Item]]) -> float:
    """Nanoseconds a step of the items found."""
    return sum(item.ns for _, item in found)


def most(found: Iterable[tuple[int, Item]]) -> float:
    """Nanoseconds a step that the items found may take at most, by the interval of the overhead correction.

    Cells of many short events (a loader in Python, an optimizer's loop) lose most to that correction, at times all.
    """
    return sum(max(item.ns, item.high_ns) for _, item in found)
