"""What the user can set about tuning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from steptime.errors import SteptimeError


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """Settings of `steptime tune`; errors name the option.

    Raises:
        SteptimeError: a value that cannot work.
    """

    budget_s: float = 600.0
    """Wall clock for everything, in seconds; a trial that no longer fits is not started."""
    seeds: int = 5
    """Paired seeds that the quality test begins with; it may take more when the budget allows."""
    margin: float = 0.5
    """Margin of the quality test in units of the unchanged script's spread over seeds."""
    quality_steps: int = 60
    """Steps of a run of the quality test, at least 30; fewer fit when the budget is short."""
    accept_untested: bool = False
    """Keep remedies of a script whose quality cannot be tested."""
    only: tuple[str, ...] = ()
    """Names of the only remedies that may be tried; empty: all."""
    skip: tuple[str, ...] = ()
    """Names of remedies that are not tried."""
    own: tuple[Path, ...] = ()
    """Files of remedies of the user's own."""
    seed: int = 0
    """Of the order of blocks."""

    def __post_init__(self) -> None:
        if self.budget_s < 30:
            raise SteptimeError(f"{self.budget_s:g} s hold no trial", where="--budget", mend="give at least 30s")
        if self.seeds < 5:
            raise SteptimeError(f"{self.seeds} pairs prove nothing", where="--seeds", mend="give at least 5")
        if not self.margin > 0:
            raise SteptimeError("must be positive", where="--margin")
        if self.quality_steps < 30:
            raise SteptimeError("needs at least 30 steps", where="--quality-steps")


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """Seconds in a duration such as 90s, 10m, 1h, or plain seconds.

    Raises:
        SteptimeError: anything else.
    """
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    try:
        return float(number) * _UNITS[unit]
    except ValueError:
        raise SteptimeError(f"{text!r} is no duration", where="--budget", mend="write 90s, 10m or 1h") from None
