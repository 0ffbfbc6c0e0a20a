"""One remedy against the best setup so far: its prediction for the step as it is now, its duel, its verdict."""

from __future__ import annotations

from dataclasses import replace

from steptime.errors import SteptimeError
from steptime.explain.remedies import Proposal, Remedy
from steptime.tune.duel import Duel, needs_second, pace
from steptime.tune.result import Verdict
from steptime.tune.state import Tuning
from steptime.tune.trials import Setup, Side, SideEndedError
from steptime.tune.waiting import predict


def attempt(tuning: Tuning, proposal: Proposal) -> None:
    """Tries a remedy; what proves faster stays, and the rest is predicted anew.

    Raises:
        SteptimeError: the script writes where no trial may.
    """
    remedy = proposal.remedy
    prediction = proposal.prediction
    share = 1e9 * prediction.saved_s / tuning.evidence.step_ns if prediction else 0.0
    tuning.say(f"trying {remedy.name} (predicted to save {100 * share:.0f} % of the step)")
    candidate: Side | None = None
    told = proposal
    try:
        setup = tuning.best.plus(remedy)
        if tuning.living is None:
            tuning.living = tuning.trials.open(tuning.best)
        proposal = _foretell(tuning, told, tuning.living)
        candidate = tuning.trials.open(setup)
        found = tuning.trial(tuning.living, candidate, setup)
        if needs_second(found):
            tuning.say(f"{remedy.name}: {found.gain.ratio:.3f}x; once more in fresh processes")
            tuning.close()
            candidate.close()
            tuning.living = tuning.trials.open(tuning.best)
            proposal = _foretell(tuning, told, tuning.living)
            candidate = tuning.trials.open(setup)
            # the second finding is published: the first was selected for being high
            found = tuning.trial(tuning.living, candidate, setup)
        refused, compile_s = candidate.refused(), candidate.compile_s()
    except (SideEndedError, SteptimeError) as error:
        if candidate is not None:
            candidate.close()
        if isinstance(error, SteptimeError) and "cannot redirect" in error.what:
            raise
        tuning.decide(proposal, "refused", str(error))
        return
    verdict, why = _speed_verdict(remedy, found, refused, compile_s)
    if verdict == "kept" and remedy.extra is not None:
        # nothing is known of a file of the user's own: it passes the gates before others are tried on top of it
        objections = tuning.examiner().gates(Setup().plus(remedy), [remedy])
        if objections:
            verdict, why = "rejected", objections[0]
    tuning.decide(proposal, verdict, why, found, compile_s if remedy.compiles else 0.0)
    if verdict != "kept":
        candidate.close()
        return
    tuning.living.close()
    tuning.living, tuning.best = candidate, setup
    tuning.kept.append(remedy)
    claims = prediction.claims if prediction else ()
    before = tuning.evidence.at(1e9 * found.baseline_s)
    tuning.evidence = before.after(claims, step_ns=1e9 * found.candidate_s, remedy=remedy.name)
    predict(tuning)


def _foretell(tuning: Tuning, proposal: Proposal, side: Side) -> Proposal:
    """The proposal for the step as it is in this process at this time, written down before its trial begins.

    A machine that others share, and two processes of one script, differ by tens of percent: a number of seconds
    means something only beside the step that it is saved from.
    """
    prediction = proposal.prediction
    if prediction is not None:
        step_s = pace(side)
        basis = f"for a step of {1e3 * step_s:.1f} ms, as it is before the trial"
        proposal = replace(proposal, prediction=prediction.scaled(1e9 * step_s / tuning.evidence.step_ns, basis))
    tuning.predictions[proposal.remedy.name] = tuning.books.predicted(proposal)
    return proposal


def _speed_verdict(remedy: Remedy, found: Duel, refused: str, compile_s: float) -> tuple[Verdict, str]:
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
