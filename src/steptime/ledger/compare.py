"""Two runs side by side: how their step times relate, and everything that differed between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from steptime.ledger.database import Ledger
from steptime.ledger.schema import RunRow

_COMPARED = (
    "kind", "command", "cwd", "git", "python", "torch", "packages", "host", "hardware", "environment", "seeds", "plan"
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One value that differs: a dotted name, e.g. `packages.torch`; None where a run lacks it."""

    name: str
    a: Any
    b: Any


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Run B held against run A.

    `speedup` is A's median step time over B's (above 1: B is faster). `speedup_low` and `speedup_high` divide the ends
    of the two runs' own intervals: runs at different times are not an interleaved A/B, so this is a bound, not a
    verdict. All three are None where a run has no step time.
    """

    a: RunRow
    b: RunRow
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "speedup": {"ratio": self.speedup, "low": self.speedup_low, "high": self.speedup_high},
            "differences": [asdict(difference) for difference in self.differences],
        }


def compare(ledger: Ledger, a: str, b: str) -> RunComparison:
    """Compare the runs whose ids start with `a` and `b`.

    Raises:
        SteptimeError: an id fits none or several runs.
    """
    first, second = ledger.run(a), ledger.run(b)
    return RunComparison(
        a=first,
        b=second,
        speedup=_ratio(first.step_s, second.step_s),
        speedup_low=_ratio(first.step_low_s, second.step_high_s),
        speedup_high=_ratio(first.step_high_s, second.step_low_s),
        differences=tuple(
            difference
            for name in _COMPARED
            for difference in _differences(name, getattr(first, name), getattr(second, name))
        ),
    )


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _differences(name: str, a: Any, b: Any) -> list[Difference]:
    if a == b:
        return []
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return [
            difference
            for key in sorted({*a, *b})
            for difference in _differences(f"{name}.{key}", a.get(key), b.get(key))
        ]
    return [Difference(name=name, a=a, b=b)]
