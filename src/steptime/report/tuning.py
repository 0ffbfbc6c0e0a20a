"""A tune result (`steptime tune --json`) as the report reads it; keys it does not know are left alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptime.errors import SteptimeError
from steptime.report import numbers

_ORDER = ("kept", "rejected", "undecided", "refused", "no verdict", "not tried")
_TONES = {"kept": "good", "rejected": "bad", "refused": "bad", "undecided": "open"}


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds saved per step with an interval; a negative number is a loss."""

    s: float
    low_s: float
    high_s: float

    def __str__(self) -> str:
        return numbers.duration_interval(1e9 * self.s, 1e9 * self.low_s, 1e9 * self.high_s)


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One line of the tuning: what was predicted, what was measured (None: was not), the verdict and why."""

    name: str
    verdict: str
    why: str
    predicted: Estimate | None
    measured: Estimate | None
    patch: Mapping[str, Any]
    basis: str

    @property
    def tone(self) -> str:
        """How the verdict is coloured: good, bad, open or none."""
        return _TONES.get(self.verdict, "none")

    @property
    def untried(self) -> bool:
        """Whether there is nothing but a reason, and perhaps a prediction."""
        return self.verdict == "not tried" and self.measured is None

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured seconds saved; None without both, or when the measured interval reaches
        zero (the quotient would be noise).
        """
        if self.predicted is None or self.measured is None or self.measured.low_s <= 0:
            return None
        return (self.predicted.s - self.measured.s) / self.measured.s


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One loss of the script over the paired seeds.

    `baseline` and `tuned` are each seed's statistic, `difference` the mean of tuned - baseline; `low`..`high` its
    confidence interval, which the equivalence test holds against +-`margin`. All in the loss's own unit; empty or
    None: not told.
    """

    name: str
    verdict: str
    seeds: tuple[int, ...]
    baseline: tuple[float, ...]
    tuned: tuple[float, ...]
    difference: float | None
    low: float | None
    high: float | None
    margin: float | None
    facts: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What the report shows of a tune result; times in seconds.

    The ratio and the time after are None unless a confirming run of the final plan measured them.
    """

    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    before_s: float | None
    after_s: float | None
    remedies: tuple[Remedy, ...]
    quality: str
    quality_why: str
    losses: tuple[Loss, ...]
    quality_facts: Mapping[str, Any]
    plan: str
    diff: str
    compile_s: float | None
    break_even_steps: float | None
    notes: tuple[str, ...]

    @property
    def kept(self) -> int:
        """How many remedies were kept."""
        return sum(remedy.verdict == "kept" for remedy in self.remedies)


def read_tuning(data: Mapping[str, Any]) -> Tuning:
    """The tune result in `data`.

    Raises:
        SteptimeError: a value has another type than docs/tune.md says.
    """
    try:
        return _read(data)
    except (TypeError, ValueError, AttributeError) as error:
        raise SteptimeError(f"not a tune result: {error}", mend="pass what `steptime tune --json` printed") from None


def _read(data: Mapping[str, Any]) -> Tuning:
    speedup = data.get("speedup") or {}
    step = data.get("step") or {}
    quality = data.get("quality") or {}
    if isinstance(quality, str):
        quality = {"verdict": quality}
    known = {"verdict", "why", "losses"}
    confirmed = speedup.get("confirmed", True)
    return Tuning(
        ratio=_number(speedup.get("ratio")) if confirmed else None,
        ratio_low=_number(speedup.get("low")),
        ratio_high=_number(speedup.get("high")),
        before_s=_number(step.get("before_s")),
        after_s=_number(step.get("after_s")) if confirmed else None,
        remedies=tuple(sorted((_remedy(item) for item in data.get("remedies") or ()), key=_order)),
        quality=str(quality.get("verdict") or "not tested"),
        quality_why=str(quality.get("why") or ""),
        losses=tuple(_loss(name, item) for name, item in _named(quality.get("losses"))),
        quality_facts={key: value for key, value in quality.items() if key not in known},
        plan=_plan(data.get("plan")),
        diff=str(data.get("diff") or ""),
        compile_s=_number(data.get("compile_s")),
        break_even_steps=_number(data.get("break_even_steps")),
        notes=tuple(str(note) for note in data.get("notes") or ()),
    )


def _number(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]  # float() says what it cannot read


def _finite(value: object) -> float | None:
    """A NaN or an infinity says as little as a missing number, and cannot be drawn."""
    number = _number(value)
    return number if number is not None and math.isfinite(number) else None


def _estimate(item: Mapping[str, Any], point: str, low: str, high: str) -> Estimate | None:
    value = _finite(item.get(point))
    if value is None:
        return None
    ends = [_finite(item.get(key)) for key in (low, high)]
    return Estimate(s=value, low_s=value if ends[0] is None else ends[0], high_s=value if ends[1] is None else ends[1])


def _remedy(item: Mapping[str, Any]) -> Remedy:
    return Remedy(
        name=str(item.get("name") or "unnamed"),
        verdict=str(item.get("verdict") or "no verdict"),
        why=str(item.get("why") or ""),
        predicted=_estimate(item, "predicted_s", "low_s", "high_s"),
        measured=_estimate(item, "measured_s", "measured_low_s", "measured_high_s"),
        patch=item.get("patch") or {},
        basis=str(item.get("basis") or ""),
    )


def _order(remedy: Remedy) -> tuple[int, float]:
    """Kept first, untried last; within a verdict what saved (or would save) most first."""
    place = _ORDER.index(remedy.verdict) if remedy.verdict in _ORDER else len(_ORDER)
    gain = remedy.measured or remedy.predicted
    return place, -gain.s if gain else math.inf


def _named(losses: object) -> list[tuple[str, Mapping[str, Any]]]:
    """Losses come as a list of objects with a `name`, or as an object of objects."""
    if isinstance(losses, Mapping):
        return [(str(name), item) for name, item in losses.items()]
    if isinstance(losses, Sequence) and not isinstance(losses, str):
        return [(str(item.get("name", f"loss {index}")), item) for index, item in enumerate(losses)]
    return []


def _loss(name: str, item: Mapping[str, Any]) -> Loss:
    series = {"seeds", "baseline", "tuned", "difference", "low", "high", "margin", "verdict", "name"}
    return Loss(
        name=name,
        verdict=str(item.get("verdict") or ""),
        seeds=tuple(int(seed) for seed in item.get("seeds") or ()),
        baseline=tuple(float(value) for value in item.get("baseline") or ()),
        tuned=tuple(float(value) for value in item.get("tuned") or ()),
        difference=_finite(item.get("difference")),
        low=_finite(item.get("low")),
        high=_finite(item.get("high")),
        margin=_finite(item.get("margin")),
        facts={key: value for key, value in item.items() if key not in series},
    )


def _plan(plan: object) -> str:
    """A plan.toml as it stands, or TOML-like lines of a plan given as an object of sections."""
    if isinstance(plan, Mapping):
        import tomli_w

        return tomli_w.dumps(_without_none(plan))
    return str(plan or "")


def _without_none(section: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null: a setting that is None is one that is not set."""
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in section.items()
        if value is not None
    }
