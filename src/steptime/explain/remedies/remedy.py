"""What a remedy is: a change to the Plan, or a file of the user's own, whose gain is predicted before it is tried."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from steptime.explain.remedies.evidence import Claims, Evidence

Numerics = Literal["none", "rounding", "precision"]
"""What a remedy does to the arithmetic: nothing; another order of sums; another number format."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change that may make the step shorter.

    Args:
        name: short and unique; what `--only` and `--skip` take.
        patch: dotted Plan field -> value.
        why: the sentence that a user reads.
        changes_random_stream: whether random draws differ although the seed is the same.
        changes_numerics: see `Numerics`.
        compiles: whether its first steps pay for compilation.
        extra: file of the user's own, run in the script's process after the Plan.
    """

    name: str
    patch: Mapping[str, Any]
    why: str
    changes_random_stream: bool = False
    changes_numerics: Numerics = "none"
    compiles: bool = False
    extra: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Seconds a step that a remedy saves: P50 with P10..P90, and the sentence that says how the number was reached.

    `claims` are the items that it would take time from: what the next predictions are made without.
    """

    saved_s: float
    low_s: float
    high_s: float
    basis: str
    claims: Claims = ()

    def __post_init__(self) -> None:
        if not self.low_s <= self.saved_s <= self.high_s:
            raise ValueError(f"{self.low_s} <= {self.saved_s} <= {self.high_s} does not hold")

    def scaled(self, factor: float, basis: str) -> Prediction:
        """The prediction for a step that takes `factor` times as long, with `basis` added to how it was reached."""
        seconds = {name: factor * getattr(self, name) for name in ("saved_s", "low_s", "high_s")}
        return replace(self, **seconds, basis=f"{self.basis}; {basis}")


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A remedy with its prediction; `verdict` "try", or "not tried" and `why` not."""

    remedy: Remedy
    prediction: Prediction | None
    verdict: Literal["try", "not tried"]
    why: str = ""


Request = Mapping[str, Any]
"""One micro-measurement, as JSON values: `kind` and its sizes (see measure.py)."""


@dataclass(frozen=True, kw_only=True)
class Micro:
    """Micro-measurements of this machine: `results[key(request)]` -> seconds by name; a failed one is missing."""

    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def get(self, request: Request) -> Mapping[str, Any]:
        """The seconds measured for a request; empty when it was not measured."""
        return self.results.get(key(request), {})


def key(request: Request) -> str:
    """A request as text that is the same for the same request."""
    import json

    return json.dumps(request, sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Remedies of one kind: what to measure before, and what to propose after.

    `remedies` are the names of all that `propose` may propose; it proposes each, to try or not.
    """

    name: str
    remedies: tuple[str, ...]
    requests: Callable[[Evidence], list[Request]]
    propose: Callable[[Evidence, Micro], list[Proposal]]


def no_requests(evidence: Evidence) -> list[Request]:
    """For families that predict from the breakdown alone."""
    return []


def not_tried(remedy: Remedy, why: str) -> Proposal:
    """The remedy, put aside with its reason."""
    return Proposal(remedy=remedy, prediction=None, verdict="not tried", why=why)


def proposed(
    remedy: Remedy, *, saved_ns: float, low_ns: float, high_ns: float, basis: str, claims: Claims = ()
) -> Proposal:
    """The remedy with its prediction; nanoseconds become seconds and the interval is put in order around the point."""
    prediction = Prediction(
        saved_s=saved_ns / 1e9,
        low_s=min(low_ns, saved_ns) / 1e9,
        high_s=max(high_ns, saved_ns) / 1e9,
        basis=basis,
        claims=claims,
    )
    return Proposal(remedy=remedy, prediction=prediction, verdict="try")
