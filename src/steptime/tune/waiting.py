"""What is tried next: the remedies that are left, predicted on the step that is left, the most promising first."""

from __future__ import annotations

from dataclasses import replace

from steptime.explain.remedies import Proposal, propose_own, remedies_for
from steptime.tune.bundle import bundled, members_of, small_ones
from steptime.tune.result import RemedyResult
from steptime.tune.state import Tuning


def open_waiting(tuning: Tuning) -> None:
    """First predictions. How many will be tried is fixed here: the error of each depends on it."""
    predict(tuning)
    # one more for the small gains, which may be tried together at the end
    tuning.planned = len(tuning.waiting) + 1


def predict(tuning: Tuning) -> None:
    """Predictions of what is left, on the step that is left; what is not worth a trial is put aside."""
    settings, results = tuning.settings, tuning.results
    own = tuple(propose_own(remedy, saves, tuning.evidence) for remedy, saves in tuning.own)
    tuning.waiting = []
    for proposal in remedies_for(tuning.evidence, tuning.micro, own=own):
        name = proposal.remedy.name
        if name in tuning.bundled or (name in results and results[name].verdict != "not tried"):
            continue
        results.pop(name, None)
        if proposal.verdict == "try" and (settings.only and name not in settings.only):
            proposal = replace(proposal, verdict="not tried", why="not among --only")
        if proposal.verdict == "try" and name in settings.skip:
            proposal = replace(proposal, verdict="not tried", why="left out by --skip")
        if proposal.verdict == "try":
            tuning.waiting.append(proposal)
        else:
            results[name] = RemedyResult(proposal=proposal, verdict="not tried", why=proposal.why)


def next_alone(tuning: Tuning) -> Proposal | None:
    """The most promising remedy for which there is time; when there is none for any, they are put aside."""
    if not tuning.waiting:
        return None
    if not time_for_trial(tuning):
        needed = tuning.budget.duel_s + tuning.budget.reserve_s
        left = max(tuning.seconds_left(), 0.0)
        why = f"budget: a trial and its proof take about {needed:.0f} s, {left:.0f} s are left"
        for proposal in tuning.waiting:
            tuning.results[proposal.remedy.name] = RemedyResult(proposal=proposal, verdict="not tried", why=why)
        tuning.waiting = []
        return None
    aside = tuning.results.values()
    for proposal in small_ones(tuning.waiting, tuning.evidence, aside=aside, allowed=tuning.allowed()):
        why = "a small gain: tried together with the others"
        tuning.results[proposal.remedy.name] = RemedyResult(proposal=proposal, verdict="not tried", why=why)
        tuning.waiting.remove(proposal)
    return tuning.waiting.pop(0) if tuning.waiting else None


def next_bundle(tuning: Tuning) -> Proposal | None:
    """The small gains as one remedy, when there are some and a trial of it and the proof fit into the budget."""
    found = bundled(tuning.results.values(), tuning.evidence, allowed=tuning.allowed())
    if found is None or not time_for_trial(tuning):
        return None
    tuning.bundled = members_of(found.remedy)
    for name in tuning.bundled:
        result = tuning.results[name]
        tuning.results[name] = replace(result, why=f"part of {found.remedy.name}; alone: {result.why}")
    return found


def time_for_trial(tuning: Tuning) -> bool:
    """Whether a trial and the proof of what is kept fit into what is left of the budget."""
    return tuning.seconds_left() >= tuning.budget.duel_s + tuning.budget.reserve_s
