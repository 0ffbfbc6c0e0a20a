"""Does the tuned script still learn the same: gates first, then an equivalence test over paired seeds.

The statistic of a seed is the mean loss over the last half of its steps; a pair is the unchanged and the tuned script
with the same offset on every seed call, so both see the same weights and batches. The margin is `margin` times the
spread (standard deviation over seeds) of the unchanged script: a shift smaller than that is less than what another
seed does. 0.5 is the default: two runs half a seed-spread apart are told apart by a coin's toss and a tenth more (P(X
> Y) = 0.64), and five pairs can still prove it when the pairs agree to a third of the spread. Every loss of the
script must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from steptime.explain.remedies import Remedy
from steptime.explain.remedies.remedy import Numerics
from steptime.tune import audit
from steptime.tune.statistics import Equivalence, seeds_needed, tost
from steptime.tune.trials import Setup, Trained, Trials

MASKS = Path(__file__).with_name("masks.py")
GRADIENTS = Path(__file__).with_name("gradients.py")
MOST_SEEDS = 16
ALPHA = 0.05

Word = Literal["equivalent", "different", "undecided", "cannot tell", "not tested"]


@dataclass(frozen=True, kw_only=True)
class LossVerdict:
    """One loss: what each seed's statistic was, and the test."""

    site: str
    baseline: tuple[float, ...]
    tuned: tuple[float, ...]
    test: Equivalence

    def to_json(self, seeds: Sequence[int]) -> dict[str, Any]:
        """As docs/tune.md says."""
        return {
            "name": self.site,
            "verdict": self.test.verdict,
            "seeds": list(seeds),
            "baseline": list(self.baseline),
            "tuned": list(self.tuned),
            "difference": self.test.difference,
            "low": self.test.low,
            "high": self.test.high,
            "margin": self.test.margin,
            "pair_spread": self.test.spread,
            "power": self.test.power,
            "p_value": self.test.p_value,
        }


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The verdict. `gates` are the objections of the cheap gates; with any of them no seeds are spent."""

    verdict: Word
    why: str
    losses: tuple[LossVerdict, ...] = ()
    seeds: tuple[int, ...] = ()
    steps: int = 0
    margin: float = 0.0
    gates: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As docs/tune.md says."""
        return {
            "verdict": self.verdict,
            "why": self.why,
            "losses": [loss.to_json(self.seeds) for loss in self.losses],
            "seeds": len(self.seeds),
            "steps": self.steps,
            "margin_in_seed_spreads": self.margin,
            "alpha": ALPHA,
            "gates": list(self.gates),
        }


@dataclass(kw_only=True)
class Examiner:
    """Examines setups against the unchanged script, whose runs it keeps.

    Args:
        trials: the script.
        steps: steps of a run.
        seeds: pairs to begin with.
        margin: see above.
        pairs_left: how many more pairs of runs the budget allows.
    """

    trials: Trials
    steps: int
    seeds: int
    margin: float
    pairs_left: Callable[[], int]
    _baseline: dict[int, Trained] = field(default_factory=dict, init=False)
    _reproducible: bool | None = field(default=None, init=False)

    def baseline(self, offsets: Sequence[int]) -> list[Trained]:
        """Runs of the unchanged script; those that were made before are not repeated."""
        missing = [offset for offset in offsets if offset not in self._baseline]
        if missing:
            found = self.trials.train(Setup(extra=(GRADIENTS,)), missing, self.steps)
            self._baseline |= dict(zip(missing, found, strict=True))
        return [self._baseline[offset] for offset in offsets]

    def reproducible(self) -> bool:
        """Whether the same seeds give the same beginning; found out once, by running the first offset again."""
        if self._reproducible is None:
            (first,) = self.baseline([1])
            (again,) = self.trials.train(Setup(), [1], min(self.steps, 2))
            self._reproducible = audit.reproducible(first, again)
        return self._reproducible

    def gates(self, setup: Setup, remedies: Sequence[Remedy]) -> list[str]:
        """Objections of the cheap gates against a setup; one run of it is spent."""
        (first,) = self.baseline([1])
        stream = any(remedy.changes_random_stream for remedy in remedies)
        watches = (MASKS, GRADIENTS) if stream else (GRADIENTS,)
        (tuned,) = self.trials.train(Setup(plan=setup.plan, extra=(*setup.extra, *watches)), [1], self.steps)
        for run, whose in ((first, "the unchanged script"), (tuned, "the tuned script")):
            if run.failed:
                return [f"{whose} failed: {run.failed}"]
        found = [*audit.audit_objections(first, tuned, stream=stream), *audit.finite_objections(first, tuned)]
        numerics = _loosest(remedies)
        if stream:
            found += audit.mask_objections(tuned)
        elif self.reproducible():
            found += audit.first_loss_objections(first, tuned, numerics)
        if stream or self.reproducible():
            found += audit.gradient_objections(first, tuned, numerics, stream=stream)
        return found

    def examine(self, setup: Setup, remedies: Sequence[Remedy]) -> Quality:
        """The verdict on a setup that holds `remedies`."""
        objections = self.gates(setup, remedies)
        if objections:
            return Quality(verdict="different", why=objections[0], gates=tuple(objections), margin=self.margin)
        if not self.reproducible():
            return Quality(
                verdict="cannot tell",
                why="two runs under the same seeds begin differently, so seeds cannot be paired",
                margin=self.margin,
            )
        offsets = list(range(1, self.seeds + 1))
        tuned = self.trials.train(setup, offsets, self.steps)
        verdict = self._verdict(offsets, tuned)
        if verdict.verdict != "undecided" or not verdict.losses:
            return verdict
        # n follows from the pairs' spread alone, never from their mean: see statistics.seeds_needed
        wanted = max(
            seeds_needed(loss.test.spread, margin=loss.test.margin, least=self.seeds, most=MOST_SEEDS)
            for loss in verdict.losses
        )
        more = min(wanted - len(offsets), self.pairs_left())
        if more <= 0:
            return verdict
        further = list(range(len(offsets) + 1, len(offsets) + more + 1))
        tuned += self.trials.train(setup, further, self.steps)
        return self._verdict([*offsets, *further], tuned)

    def _verdict(self, offsets: list[int], tuned: list[Trained]) -> Quality:
        base = self.baseline(offsets)
        failed = next((run.failed for run in [*base, *tuned] if run.failed), "")
        broken = [sentence for a, b in zip(base, tuned, strict=True) for sentence in audit.finite_objections(a, b)]
        if failed or broken:
            return Quality(verdict="different", why=failed or broken[0], gates=tuple(broken), margin=self.margin)
        losses = []
        for site in base[0].losses:
            pairs = [(_statistic(a, site), _statistic(b, site)) for a, b in zip(base, tuned, strict=True)]
            a, b = np.array(pairs).T
            if not np.isfinite(a).all() or not np.isfinite(b).all():
                continue  # a loss that is not computed in these steps, in either script
            spread = float(a.std(ddof=1))
            # a script whose seeds all give the same loss leaves rounding as the only margin
            margin = self.margin * spread if spread > 0 else 1e-6 * max(abs(float(a.mean())), 1e-6)
            losses.append(
                LossVerdict(
                    site=site,
                    baseline=tuple(a.tolist()),
                    tuned=tuple(b.tolist()),
                    test=tost(b - a, margin=margin, alpha=ALPHA),
                )
            )
        if not losses:
            return Quality(verdict="cannot tell", why="the script computes no loss that could be compared")
        return Quality(
            verdict=_worst([loss.test.verdict for loss in losses]),
            why=_sentence(losses, len(offsets), self.margin),
            losses=tuple(losses),
            seeds=tuple(offsets),
            steps=self.steps,
            margin=self.margin,
        )


def _statistic(run: Trained, site: str) -> float:
    series = run.losses.get(site)
    if series is None:
        return float("nan")
    half = series[len(series) // 2 :]
    half = half[np.isfinite(half)]
    return float(half.mean()) if len(half) else float("nan")


def _worst(verdicts: list[Literal["equivalent", "different", "undecided"]]) -> Word:
    if "different" in verdicts:
        return "different"
    return "undecided" if "undecided" in verdicts else "equivalent"


def _loosest(remedies: Sequence[Remedy]) -> Numerics:
    changes = {remedy.changes_numerics for remedy in remedies}
    if "precision" in changes:
        return "precision"
    return "rounding" if "rounding" in changes else "none"


def _sentence(losses: list[LossVerdict], seeds: int, margin: float) -> str:
    loss = next((one for one in losses if one.test.verdict != "equivalent"), losses[0])
    test = loss.test
    return (
        f"over {seeds} paired seeds the loss changes by {test.difference:+.2g} ({test.low:+.2g} .. {test.high:+.2g}), "
        f"margin {test.margin:.2g} = {margin:g} seed spreads, power {test.power:.2f}"
    )
