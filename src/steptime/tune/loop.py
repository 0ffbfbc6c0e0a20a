"""The closed loop: explain, predict, try, keep or take back, examine, confirm.

Read `tune` first. Greedy with rollback: the best prediction that is left is held against the best setup so far in an
interleaved duel; what proves faster stays, and the predictions of the rest are made anew on the step that is left.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from steptime.errors import SteptimeError
from steptime.explain.explanation import Explanation
from steptime.explain.findings import find
from steptime.explain.remedies import (
    NAMES,
    Evidence,
    Micro,
    Proposal,
    Remedy,
    evidence_of,
    measure,
    propose_own,
    read_remedy,
    remedies_for,
    requests,
    with_contention,
)
from steptime.tune.books import Books
from steptime.tune.budget import CONFIRMING_PAIRS, Budget
from steptime.tune.bundle import bundled, members_of, small_ones
from steptime.tune.duel import LOOKS, Duel, duel, needs_second, pace
from steptime.tune.quality import Examiner, Quality
from steptime.tune.result import RemedyResult, TuneResult, Verdict
from steptime.tune.settings import TuneSettings
from steptime.tune.trials import Explained, Setup, Side, SideEndedError, Trials

_CONFIRMING_ALPHA = 0.05
_OTHER_SPEED = 0.1


def tune(
    trials: Trials,
    settings: TuneSettings,
    books: Books,
    *,
    command: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda line: None,
    measure_micro: Callable[[Evidence], Micro] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TuneResult:
    """Tunes the script behind `trials`.

    Args:
        trials: the script.
        settings: budget and choices.
        books: where predictions and verdicts go.
        command: of the script, for the result.
        say: told what goes on, one line each.
        measure_micro: measures what the predictions want; default: in the script's interpreter.
        clock: seconds; the budget is counted on it.

    Raises:
        SteptimeError: the script fails, has no steps, cannot be redirected; an unknown remedy is named.
    """
    begun = clock()
    own = [read_remedy(path) for path in settings.own]
    _check_names(settings, {*NAMES, *(remedy.name for remedy, _ in own)})
    say("explaining the script as it is")
    explained = trials.explain()
    books.explained(explained.explanation)
    for note in explained.explanation.notes:
        say(f"note: {note}")
    explain_s = clock() - begun
    evidence = evidence_of(explained.explanation, cores=explained.cores, python=explained.python)
    micro = (measure_micro or _measured)(evidence)
    hunt = _Hunt(
        trials=trials,
        settings=settings,
        books=books,
        say=say,
        explained=explained,
        micro=micro,
        own=own,
        evidence=with_contention(evidence, micro),
        explain_s=explain_s,
        budget=Budget(settings=settings, start_s=explained.start_s, step_s=explained.explanation.step.median_ns / 1e9),
        seconds_left=lambda: settings.budget_s - (clock() - begun),
    )
    try:
        hunt.open()
        while (proposal := hunt.next()) is not None:
            hunt.attempt(proposal)
        if (bundle := hunt.bundle()) is not None:
            hunt.attempt(bundle)
    finally:
        hunt.close()
    quality = hunt.examine()
    confirmation = hunt.confirm()
    hunt.explain_again()
    return hunt.result(command, quality, confirmation, spent_s=clock() - begun)


def _check_names(settings: TuneSettings, names: set[str]) -> None:
    for name in (*settings.only, *settings.skip):
        if name not in names:
            raise SteptimeError(
                f"there is no remedy {name}", where="--only/--skip", mend=f"one of {', '.join(sorted(names))}"
            )


def _measured(evidence: Evidence) -> Micro:
    return measure(requests(evidence), python=str(evidence.facts.get("python") or ""), threads=evidence.threads)


@dataclass(kw_only=True)
class _Hunt:
    """The state of a tuning: the best setup so far with its living process, what is left to try, what was decided."""

    trials: Trials
    settings: TuneSettings
    books: Books
    say: Callable[[str], None]
    explained: Explained
    micro: Micro
    own: list[tuple[Remedy, tuple[float, float, float]]]
    evidence: Evidence
    explain_s: float
    budget: Budget
    seconds_left: Callable[[], float]
    after: Explanation | None = field(default=None, init=False)
    best: Setup = field(default_factory=Setup, init=False)
    kept: list[Remedy] = field(default_factory=list, init=False)
    results: dict[str, RemedyResult] = field(default_factory=dict, init=False)
    waiting: list[Proposal] = field(default_factory=list, init=False)
    compile_s: dict[str, float] = field(default_factory=dict, init=False)
    notes: list[str] = field(default_factory=list, init=False)
    _predictions: dict[str, str | None] = field(default_factory=dict, init=False)
    _bundled: tuple[str, ...] = field(default=(), init=False)
    _living: Side | None = field(default=None, init=False)
    _planned: int = field(default=1, init=False)
    _examiner: Examiner | None = field(default=None, init=False)

    def open(self) -> None:
        """First predictions. How many will be tried is fixed here: the error of each depends on it."""
        self.predict()
        # one more for the small gains, which may be tried together at the end
        self._planned = len(self.waiting) + 1

    def predict(self) -> None:
        """Predictions of what is left, on the step that is left; what is not worth a trial is put aside."""
        own = tuple(propose_own(remedy, saves, self.evidence) for remedy, saves in self.own)
        found = remedies_for(self.evidence, self.micro, own=own)
        self.waiting = []
        for proposal in found:
            name = proposal.remedy.name
            if name in self._bundled or (name in self.results and self.results[name].verdict != "not tried"):
                continue
            self.results.pop(name, None)
            if proposal.verdict == "try" and (self.settings.only and name not in self.settings.only):
                proposal = replace(proposal, verdict="not tried", why="not among --only")
            if proposal.verdict == "try" and name in self.settings.skip:
                proposal = replace(proposal, verdict="not tried", why="left out by --skip")
            if proposal.verdict == "try":
                self.waiting.append(proposal)
            else:
                self.results[name] = RemedyResult(proposal=proposal, verdict="not tried", why=proposal.why)

    def next(self) -> Proposal | None:
        """The most promising remedy for which there is time; when there is none for any, they are put aside."""
        if not self.waiting:
            return None
        needed = self.budget.duel_s + self.budget.reserve_s
        if self.seconds_left() < needed:
            for proposal in self.waiting:
                left = max(self.seconds_left(), 0.0)
                why = f"budget: a trial and its proof take about {needed:.0f} s, {left:.0f} s are left"
                self.results[proposal.remedy.name] = RemedyResult(proposal=proposal, verdict="not tried", why=why)
            self.waiting = []
            return None
        aside = self.results.values()
        for proposal in small_ones(self.waiting, self.evidence, aside=aside, allowed=self._allowed()):
            why = "a small gain: tried together with the others"
            self.results[proposal.remedy.name] = RemedyResult(proposal=proposal, verdict="not tried", why=why)
            self.waiting.remove(proposal)
        return self.waiting.pop(0) if self.waiting else None

    def bundle(self) -> Proposal | None:
        """The small gains as one remedy, when there are some and a trial of it and the proof fit into the budget."""
        found = bundled(self.results.values(), self.evidence, allowed=self._allowed())
        if found is None or self.seconds_left() < self.budget.duel_s + self.budget.reserve_s:
            return None
        self._bundled = members_of(found.remedy)
        for name in self._bundled:
            result = self.results[name]
            self.results[name] = replace(result, why=f"part of {found.remedy.name}; alone: {result.why}")
        return found

    def _allowed(self) -> list[str]:
        """The remedies that --only and --skip leave."""
        only, skip = self.settings.only, self.settings.skip
        return [name for name in self.results if (name in only or not only) and name not in skip]

    def attempt(self, proposal: Proposal) -> None:
        """One remedy against the best setup so far."""
        remedy = proposal.remedy
        prediction = proposal.prediction
        share = 1e9 * prediction.saved_s / self.evidence.step_ns if prediction else 0.0
        self.say(f"trying {remedy.name} (predicted to save {100 * share:.0f} % of the step)")
        candidate: Side | None = None
        told = proposal
        try:
            setup = self.best.plus(remedy)
            if self._living is None:
                self._living = self.trials.open(self.best)
            proposal = self._foretell(told, self._living)
            candidate = self.trials.open(setup)
            found = self._duel(self._living, candidate, setup)
            if needs_second(found):
                self.say(f"{remedy.name}: {found.gain.ratio:.3f}x; once more in fresh processes")
                self._living.close()
                candidate.close()
                self._living = None
                self._living = self.trials.open(self.best)
                proposal = self._foretell(told, self._living)
                candidate = self.trials.open(setup)
                # the second finding is published: the first was selected for being high
                found = self._duel(self._living, candidate, setup)
            refused, compile_s = candidate.refused(), candidate.compile_s()
        except (SideEndedError, SteptimeError) as error:
            if candidate is not None:
                candidate.close()
            if isinstance(error, SteptimeError) and "cannot redirect" in error.what:
                raise
            self._decide(proposal, "refused", str(error))
            return
        verdict, why = self._speed_verdict(remedy, found, refused, compile_s)
        if verdict == "kept" and remedy.extra is not None:
            # nothing is known of a file of the user's own: it passes the gates before others are tried on top of it
            objections = self._examine().gates(Setup().plus(remedy), [remedy])
            if objections:
                verdict, why = "rejected", objections[0]
        self._decide(proposal, verdict, why, found, compile_s if remedy.compiles else 0.0)
        if verdict != "kept":
            candidate.close()
            return
        self._living.close()
        self._living, self.best = candidate, setup
        self.kept.append(remedy)
        claims = prediction.claims if prediction else ()
        before = self.evidence.at(1e9 * found.baseline_s)
        self.evidence = before.after(claims, step_ns=1e9 * found.candidate_s, remedy=remedy.name)
        self.predict()

    def _foretell(self, proposal: Proposal, side: Side) -> Proposal:
        """The proposal for the step as it is in this process at this time, written down before its trial begins.

        A machine that others share, and two processes of one script, differ by tens of percent: a number of seconds
        means something only beside the step that it is saved from.
        """
        prediction = proposal.prediction
        if prediction is not None:
            step_s = pace(side)
            basis = f"for a step of {1e3 * step_s:.1f} ms, as it is before the trial"
            proposal = replace(proposal, prediction=prediction.scaled(1e9 * step_s / self.evidence.step_ns, basis))
        self._predictions[proposal.remedy.name] = self.books.predicted(proposal)
        return proposal

    def _speed_verdict(self, remedy: Remedy, found: Duel, refused: str, compile_s: float) -> tuple[Verdict, str]:
        gain = found.gain
        told = f"{gain.ratio:.3f}x ({gain.low:.3f} .. {gain.high:.3f}, {gain.pairs} pairs)"
        if refused:
            return "refused", f"did not take effect: {refused}"
        if gain.decided == "open":
            end = "the budget" if found.out_of_time else "the largest number of pairs"
            return "undecided", f"{told}: {end} decided nothing"
        if gain.decided == "not faster":
            return "rejected", f"no gain of 1 %: {told}"
        if remedy.compiles and found.saved_s[0] > 0:
            steps = int(compile_s / found.saved_s[0]) + 1
            return "kept", f"{told}; {compile_s:.0f} s of compilation pay after {steps:,} steps"
        return "kept", told

    def _decide(
        self, proposal: Proposal, verdict: Verdict, why: str, found: Duel | None = None, compile_s: float = 0.0
    ) -> None:
        result = RemedyResult(proposal=proposal, verdict=verdict, why=why, duel=found, compile_s=compile_s)
        self.results[proposal.remedy.name] = result
        self.say(f"{proposal.remedy.name}: {verdict} ({why})")

    def examine(self) -> Quality:
        """The quality of what was kept; remedies that spoil it are found one by one and taken back."""
        if not self.kept:
            return Quality(verdict="equivalent", why="nothing was changed")
        self.say("examining whether the tuned script still learns the same")
        examiner = self._examine()
        quality = examiner.examine(self.best, self.kept)
        while quality.verdict in ("different", "undecided") and self.kept:
            culprits = self._culprits(examiner, quality)
            for remedy, own in culprits:
                verdict: Verdict = "undecided" if own.verdict == "undecided" else "rejected"
                self._overturn(remedy, verdict, f"quality: {own.why}", own)
            if not self.kept:
                return Quality(verdict="equivalent", why=f"nothing was kept; before that: {quality.why}")
            quality = examiner.examine(self.best, self.kept)
        if quality.verdict == "cannot tell" and not self.settings.accept_untested:
            for remedy in list(self.kept):
                self._overturn(remedy, "undecided", f"quality: cannot tell ({quality.why}); --accept-untested keeps it")
        return quality

    def _culprits(self, examiner: Examiner, joint: Quality) -> list[tuple[Remedy, Quality]]:
        """The kept remedies that fail alone; all of those that change anything numeric when none fails alone."""
        if len(self.kept) == 1:
            return [(self.kept[0], joint)]
        guilty = []
        for remedy in self.kept:
            if self.seconds_left() < self.budget.seeds_s(self.settings.seeds):
                break
            self.say(f"examining {remedy.name} alone")
            own = examiner.examine(Setup().plus(remedy), [remedy])
            if own.verdict in ("different", "undecided"):
                guilty.append((remedy, own))
        if guilty:
            return guilty
        suspects = [r for r in self.kept if r.changes_random_stream or r.changes_numerics != "none" or r.extra]
        # the least gain for the doubt goes first: the last one that was kept
        return [((suspects or self.kept)[-1], joint)]

    def _overturn(self, remedy: Remedy, verdict: Verdict, why: str, quality: Quality | None = None) -> None:
        self.kept.remove(remedy)
        self.results[remedy.name] = replace(self.results[remedy.name], verdict=verdict, why=why, quality=quality)
        self.say(f"{remedy.name}: {verdict} ({why})")
        self.best = Setup()
        for left in self.kept:
            self.best = self.best.plus(left)

    def confirm(self) -> Duel | None:
        """The final setup against the unchanged script, both in fresh processes; what fails here is not published."""
        if not self.kept:
            return None
        self.say("confirming the final plan in fresh processes")
        sides: list[Side] = []
        try:
            sides.append(self.trials.open(Setup()))
            sides.append(self.trials.open(self.best))
            found = self._duel(
                sides[0], sides[1], self.best, remedies=1, alpha=_CONFIRMING_ALPHA, looks=(CONFIRMING_PAIRS,)
            )
            compiles = any(remedy.compiles for remedy in self.kept)
            self.compile_s = {"final": sides[1].compile_s()} if compiles else {}
        except SideEndedError as error:
            self._take_all_back("undecided", f"the confirming run failed: {error}")
            return None
        finally:
            for side in sides:
                side.close()
        explained_s = self.budget.step_s
        if abs(found.baseline_s / explained_s - 1) > _OTHER_SPEED:
            self.notes.append(
                f"the machine changed speed: the unchanged script took {1e3 * explained_s:.1f} ms a step when it was "
                f"explained, {1e3 * found.baseline_s:.1f} ms when the final plan was confirmed"
            )
        if found.gain.low <= 1.0:
            self._take_all_back("undecided", "the confirming run did not show a gain")
        return found

    def explain_again(self) -> None:
        """The step under the final plan, for the picture before and after; only from time that is left over."""
        if not self.kept or self.seconds_left() < 1.3 * self.explain_s:
            return
        self.say("explaining the tuned script")
        try:
            self.after = self.trials.explain(self.best).explanation
        except SteptimeError as error:
            self.notes.append(f"the tuned script could not be explained: {error}")

    def _take_all_back(self, verdict: Verdict, why: str) -> None:
        for remedy in list(self.kept):
            self._overturn(remedy, verdict, why)

    def result(self, command: tuple[str, ...], quality: Quality, found: Duel | None, *, spent_s: float) -> TuneResult:
        """Everything, with the verdicts written to the books."""
        for name, result in self.results.items():
            self.books.decided(result, self._predictions.get(name))
        order: tuple[Verdict, ...] = ("kept", "undecided", "rejected", "refused", "not tried")
        results = sorted(self.results.values(), key=lambda result: order.index(result.verdict))
        return TuneResult(
            command=command,
            setup=self.best,
            remedies=tuple(results),
            confirmation=found if self.kept else None,
            quality=quality,
            step_s=self.explained.explanation.step.median_ns / 1e9,
            compile_s=self.compile_s.get("final", 0.0),
            spent_s=spent_s,
            explanation=self.explained.explanation.to_json(),
            explanation_after=self.after.to_json() if self.after else None,
            seeds={
                "quality": len(quality.seeds),
                "quality_steps": self.budget.quality_steps,
                "blocks": self.settings.seed,
            },
            findings=self.explained.explanation.findings or find(self.explained.explanation),
            notes=tuple(self.notes),
        )

    def close(self) -> None:
        """Ends the living process."""
        if self._living is not None:
            self._living.close()
            self._living = None

    def _duel(
        self,
        a: Side,
        b: Side,
        setup: Setup,
        *,
        remedies: int | None = None,
        alpha: float = 0.05,
        looks: tuple[int, ...] = LOOKS,
    ) -> Duel:
        return duel(
            a,
            b,
            alpha=alpha,
            remedies=remedies or self._planned,
            rng=random.Random(self.settings.seed + len(self.results)),
            seconds_left=lambda: self.seconds_left() - (self.budget.reserve_s if remedies is None else 0.0),
            settle=1 + _queued(setup),
            looks=looks,
        )

    def _examine(self) -> Examiner:
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


def _queued(setup: Setup) -> int:
    """Batches that may lie ready when a block begins: they would flatter a side that was held, so they do not count."""
    data = setup.plan.data
    return min((data.workers or 0) * (data.prefetch_factor or 2) + data.prefetch_thread, 16)
