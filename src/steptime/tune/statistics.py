"""The two verdicts' statistics, as pure functions: is it faster, and does it still learn the same.

Speed. A pair is one block of each side, measured one after the other in random order; its observation is log(baseline
seconds / candidate seconds), so drift that both blocks share cancels. The interval is the Tukey-McLaughlin trimmed-t
interval (Tukey & McLaughlin 1963; Wilcox, Introduction to Robust Estimation, 4.3): one formula that stands heavy
tails, chosen before the data are seen. Its standard error grows by the AR(1) factor (1 + r) / (1 - r) of the pairs'
lag-1 autocorrelation when that is positive. A duel looks at its pairs a few times; each look gets an equal share of
the error (Bonferroni over looks and over the remedies that tune set out to try), which needs no assumption on how
looks depend on each other. Stopping for lack of a gain costs no error.

Quality. Two one-sided tests (TOST; Schuirmann 1987) on the paired differences of seeds: equivalent when the (1 - 2
alpha) t-interval of the mean difference lies inside +-margin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
TRIM = 0.2
"""Share of the pairs cut at each end. 20 % is Wilcox's recommendation for samples this small."""
_HOPELESS = 0.05
"""Chance of giving up, at a look, on a remedy whose gain is just worth it."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with its two-sided confidence interval at error level `alpha`, from `n` observations."""

    point: float
    low: float
    high: float
    alpha: float
    n: int


def trimmed_interval(values: Sequence[float] | Floats, *, alpha: float, trim: float = TRIM) -> Interval:
    """Trimmed mean of `values` and its two-sided interval at level `alpha`.

    Raises:
        ValueError: fewer than 4 values, or a value that is not finite.
    """
    from scipy import stats

    x = np.asarray(values, dtype=np.float64)
    n = len(x)
    if n < 4:
        raise ValueError(f"an interval needs at least 4 pairs, not {n}")
    if not np.isfinite(x).all():
        raise ValueError("a value is not finite")
    cut = int(trim * n)
    ordered = np.sort(x)
    kept = ordered[cut : n - cut]
    winsorised = np.clip(x, kept[0], kept[-1])
    point = float(kept.mean())
    error = float(winsorised.std(ddof=1)) / ((1 - 2 * cut / n) * math.sqrt(n))
    error *= math.sqrt(_autocorrelation_factor(winsorised))
    reach = float(stats.t.ppf(1 - alpha / 2, len(kept) - 1)) * error
    return Interval(point=point, low=point - reach, high=point + reach, alpha=alpha, n=n)


def _autocorrelation_factor(x: Floats) -> float:
    """Variance inflation of a mean under AR(1); 1 when the lag-1 correlation is not positive.

    The estimate is biased by about -1/n (Kendall 1954), which is added back.
    """
    n = len(x)
    d = x - x.mean()
    total = float(d @ d)
    if total == 0.0:
        return 1.0
    r = min(float(d[:-1] @ d[1:]) / total + 1.0 / n, 0.8)
    return (1 + r) / (1 - r) if r > 0 else 1.0


def alpha_each(alpha: float, *, remedies: int, looks: int) -> float:
    """One-sided error of one look at one remedy, so that all together err at most `alpha` (Bonferroni)."""
    return alpha / (max(remedies, 1) * max(looks, 1))


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What a duel found: `ratio` = baseline / candidate step time with its interval.

    `low` is a one-sided bound at `alpha`, `high` the one on the other side; `decided` is "faster", "not faster" or
    "open" (more pairs could still decide).
    """

    ratio: float
    low: float
    high: float
    alpha: float
    pairs: int
    decided: Literal["faster", "not faster", "open"]


def judge(log_ratios: Sequence[float], *, alpha: float, least: float = 0.01) -> Gain:
    """The gain that pairs of blocks show.

    Args:
        log_ratios: log(baseline / candidate) of each pair.
        alpha: one-sided error of this look.
        least: relative gain below which a remedy is not worth its place in a plan (0.01 = 1 %).
    """
    # giving up costs no error, so the bound that says "hopeless" needs no correction for looks and remedies
    found = trimmed_interval(log_ratios, alpha=2 * alpha)
    worth = math.log1p(least)
    if found.low > 0 and found.point >= worth:
        decided: Literal["faster", "not faster", "open"] = "faster"
    elif trimmed_interval(log_ratios, alpha=2 * _HOPELESS).high < worth:
        decided = "not faster"
    else:
        decided = "open"
    return Gain(
        ratio=math.exp(found.point),
        low=math.exp(found.low),
        high=math.exp(found.high),
        alpha=alpha,
        pairs=found.n,
        decided=decided,
    )


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """TOST over paired differences d = tuned - baseline, in the loss's unit.

    `low`..`high` is the (1 - 2 alpha) interval of the mean difference; `power` the chance that the test says
    "equivalent" when the true difference is 0 and the differences spread as seen. `verdict`: "equivalent" (the interval
    lies inside +-margin), "different" (it does not touch 0 and the mean lies outside the margin), else "undecided".
    """

    difference: float
    low: float
    high: float
    margin: float
    spread: float
    n: int
    power: float
    p_value: float
    verdict: Literal["equivalent", "different", "undecided"]


def tost(differences: Sequence[float] | Floats, *, margin: float, alpha: float = 0.05) -> Equivalence:
    """The equivalence test of paired `differences` against +-`margin`.

    Raises:
        ValueError: fewer than 2 differences, or a margin that is not positive.
    """
    from scipy import stats

    d = np.asarray(differences, dtype=np.float64)
    n = len(d)
    if n < 2:
        raise ValueError(f"an equivalence test needs at least 2 pairs, not {n}")
    if not margin > 0:
        raise ValueError(f"the margin must be positive, not {margin}")
    mean, spread = float(d.mean()), float(d.std(ddof=1))
    error = max(spread / math.sqrt(n), np.finfo(np.float64).tiny)
    reach = float(stats.t.ppf(1 - alpha, n - 1)) * error
    low, high = mean - reach, mean + reach
    inside = -margin < low and high < margin
    apart = (low > 0 or high < 0) and abs(mean) > margin
    return Equivalence(
        difference=mean,
        low=low,
        high=high,
        margin=margin,
        spread=spread,
        n=n,
        power=tost_power(n, spread=spread, margin=margin, alpha=alpha),
        p_value=float(stats.t.sf((margin - abs(mean)) / error, n - 1)),
        verdict="equivalent" if inside else "different" if apart else "undecided",
    )


def tost_power(n: int, *, spread: float, margin: float, alpha: float = 0.05) -> float:
    """Chance of "equivalent" at true difference 0: P(|mean| < margin - t s/sqrt n), s integrated over its chi law.

    Exact for normal differences (Phillips 1990): the mean and the sample spread are independent.
    """
    from scipy import stats

    if spread == 0.0:
        return 1.0
    t = float(stats.t.ppf(1 - alpha, n - 1))
    # quantiles of s^2 stand for the integral: 400 equal-probability slices give three digits
    slices = (np.arange(400) + 0.5) / 400
    s = spread * np.sqrt(stats.chi2.ppf(slices, n - 1) / (n - 1))
    room = (margin - t * s / math.sqrt(n)) * math.sqrt(n) / spread
    return float(np.where(room > 0, 2 * stats.norm.cdf(room) - 1, 0.0).mean())


def seeds_needed(spread: float, *, margin: float, least: int, most: int, power: float = 0.9) -> int:
    """Pairs of seeds for the wanted power at true difference 0, between `least` and `most`.

    Re-estimating n from the spread of the first seeds leaves the error of a TOST practically where it was, since n
    depends on the spread only, never on the mean (Kieser & Friede 2003; held by a simulation in the tests).
    """
    for n in range(least, most):
        if tost_power(n, spread=spread, margin=margin) >= power:
            return n
    return most


def within(value: float, reference: float, *, relative: float) -> bool:
    """Whether two losses agree to rounding of the given relative size."""
    if math.isnan(value) or math.isnan(reference):
        return False
    return abs(value - reference) <= relative * max(abs(value), abs(reference), 1e-12)
