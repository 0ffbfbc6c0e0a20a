"""The state of a tuning, which its parts (waiting, attempt, proof) read and change in turn."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from steptime.explain.remedies import Evidence, Micro, Proposal, Remedy
from steptime.tune.books import Books
from steptime.tune.budget import Budget
from steptime.tune.duel import LOOKS, Duel, duel
from steptime.tune.quality import Examiner, Quality
from steptime.tune.result import RemedyResult, Verdict
from steptime.tune.settings import TuneSettings
from steptime.tune.trials import Explained, Setup, Side, Trials


@dataclass(kw_only=True)
class Tuning:
    """The best setup so far with its living process, what is left to try, what was decided.

    Args:
        trials: the script.
        settings: the user's.
        books: where predictions and verdicts go.
        say: told what goes on.
        explained: the unchanged script.
        micro: measured for the predictions.
        own: the user's own remedies with the shares they are said to save.
        evidence: the step that is left.
        budget: what the parts cost.
        seconds_left: of the budget.
    """

    trials: Trials
    settings: TuneSettings
    books: Books
    say: Callable[[str], None]
    explained: Explained
    micro: Micro
    own: list[tuple[Remedy, tuple[float, float, float]]]
    evidence: Evidence
    budget: Budget
    seconds_left: Callable[[], float]
    best: Setup = field(default_factory=Setup, init=False)
    living: Side | None = field(default=None, init=False)
    """A process of the best setup."""
    kept: list[Remedy] = field(default_factory=list, init=False)
    results: dict[str, RemedyResult] = field(default_factory=dict, init=False)
    waiting: list[Proposal] = field(default_factory=list, init=False)
    """What is to be tried alone, the most promising first."""
    bundled: tuple[str, ...] = field(default=(), init=False)
    """The names of the remedies that are tried together."""
    planned: int = field(default=1, init=False)
    """How many trials share the error, fixed before the first."""
    predictions: dict[str, str | None] = field(default_factory=dict, init=False)
    """By remedy, what the books call its prediction."""
    compile_s: float = field(default=0.0, init=False)
    notes: list[str] = field(default_factory=list, init=False)
    _examiner: Examiner | None = field(default=None, init=False)

    def decide(
        self, proposal: Proposal, verdict: Verdict, why: str, found: Duel | None = None, compile_s: float = 0.0
    ) -> None:
        """The verdict on a remedy that was tried."""
        result = RemedyResult(proposal=proposal, verdict=verdict, why=why, duel=found, compile_s=compile_s)
        self.results[proposal.remedy.name] = result
        self.say(f"{proposal.remedy.name}: {verdict} ({why})")

    def overturn(self, remedy: Remedy, verdict: Verdict, why: str, quality: Quality | None = None) -> None:
        """Takes a kept remedy back."""
        self.kept.remove(remedy)
        self.results[remedy.name] = replace(self.results[remedy.name], verdict=verdict, why=why, quality=quality)
        self.say(f"{remedy.name}: {verdict} ({why})")
        self.best = Setup()
        for left in self.kept:
            self.best = self.best.plus(left)

    def allowed(self) -> list[str]:
        """The remedies that --only and --skip leave."""
        only, skip = self.settings.only, self.settings.skip
        return [name for name in self.results if (name in only or not only) and name not in skip]

    def trial(self, a: Side, b: Side, setup: Setup) -> Duel:
        """A duel of the best setup with another; it has its share of the error, and leaves time for the proof."""
        return self._duel(a, b, setup, remedies=self.planned, alpha=0.05, looks=LOOKS, spare_s=self.budget.reserve_s)

    def confirmation(self, a: Side, b: Side, setup: Setup, *, alpha: float, pairs: int) -> Duel:
        """The last duel: one look after so many pairs."""
        return self._duel(a, b, setup, remedies=1, alpha=alpha, looks=(pairs,), spare_s=0.0)

    def _duel(
        self, a: Side, b: Side, setup: Setup, *, remedies: int, alpha: float, looks: tuple[int, ...], spare_s: float
    ) -> Duel:
        return duel(
            a,
            b,
            alpha=alpha,
            remedies=remedies,
            rng=random.Random(self.settings.seed + len(self.results)),
            seconds_left=lambda: self.seconds_left() - spare_s,
            settle=1 + _queued(setup),
            looks=looks,
        )

    def examiner(self) -> Examiner:
        """The quality test; it keeps the unchanged script's runs."""
        if self._examiner is None:
            self._examiner = Examiner(
                trials=self.trials,
                steps=self.budget.quality_steps,
                seeds=self.settings.seeds,
                margin=self.settings.margin,
                pairs_left=lambda: int(
                    (self.seconds_left() - self.budget.confirm_s) / max(self.budget.seeds_s(1), 1e-9)
                ),
            )
        return self._examiner

    def close(self) -> None:
        """Ends the living process."""
        if self.living is not None:
            self.living.close()
            self.living = None


def _queued(setup: Setup) -> int:
    """Batches that may lie ready when a block begins: they would flatter a side that was held, so they do not count."""
    data = setup.plan.data
    return min((data.workers or 0) * (data.prefetch_factor or 2) + data.prefetch_thread, 16)
