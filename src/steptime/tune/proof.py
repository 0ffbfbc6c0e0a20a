"""The proof of what was kept: it still learns the same, and it is faster, between fresh processes once more."""

from __future__ import annotations

from steptime.explain.remedies import Remedy
from steptime.tune.budget import CONFIRMING_PAIRS
from steptime.tune.duel import Duel
from steptime.tune.quality import Examiner, Quality
from steptime.tune.result import Verdict
from steptime.tune.state import Tuning
from steptime.tune.trials import Setup, Side, SideEndedError

_CONFIRMING_ALPHA = 0.05
_OTHER_SPEED = 0.1


def examine(tuning: Tuning) -> Quality:
    """The quality of what was kept; remedies that spoil it are found one by one and taken back."""
    if not tuning.kept:
        return Quality(verdict="equivalent", why="nothing was changed")
    tuning.say("examining whether the tuned script still learns the same")
    examiner = tuning.examiner()
    quality = examiner.examine(tuning.best, tuning.kept)
    while quality.verdict in ("different", "undecided") and tuning.kept:
        for remedy, own in _culprits(tuning, examiner, quality):
            verdict: Verdict = "undecided" if own.verdict == "undecided" else "rejected"
            tuning.overturn(remedy, verdict, f"quality: {own.why}", own)
        if not tuning.kept:
            return Quality(verdict="equivalent", why=f"nothing was kept; before that: {quality.why}")
        quality = examiner.examine(tuning.best, tuning.kept)
    if quality.verdict == "cannot tell" and not tuning.settings.accept_untested:
        for remedy in list(tuning.kept):
            tuning.overturn(remedy, "undecided", f"quality: cannot tell ({quality.why}); --accept-untested keeps it")
    return quality


def _culprits(tuning: Tuning, examiner: Examiner, joint: Quality) -> list[tuple[Remedy, Quality]]:
    """The kept remedies that fail alone; all of those that change anything numeric when none fails alone."""
    if len(tuning.kept) == 1:
        return [(tuning.kept[0], joint)]
    guilty = []
    for remedy in tuning.kept:
        if tuning.seconds_left() < tuning.budget.seeds_s(tuning.settings.seeds):
            break
        tuning.say(f"examining {remedy.name} alone")
        own = examiner.examine(Setup().plus(remedy), [remedy])
        if own.verdict in ("different", "undecided"):
            guilty.append((remedy, own))
    if guilty:
        return guilty
    suspects = [r for r in tuning.kept if r.changes_random_stream or r.changes_numerics != "none" or r.extra]
    # the least gain for the doubt goes first: the last one that was kept
    return [((suspects or tuning.kept)[-1], joint)]


def confirm(tuning: Tuning) -> Duel | None:
    """The final setup against the unchanged script, both in fresh processes; what fails here is not published."""
    if not tuning.kept:
        return None
    tuning.say("confirming the final plan in fresh processes")
    sides: list[Side] = []
    try:
        sides.append(tuning.trials.open(Setup()))
        sides.append(tuning.trials.open(tuning.best))
        before, after = sides
        found = tuning.confirmation(before, after, tuning.best, alpha=_CONFIRMING_ALPHA, pairs=CONFIRMING_PAIRS)
        compiles = any(remedy.compiles for remedy in tuning.kept)
        tuning.compile_s = sides[1].compile_s() if compiles else 0.0
    except SideEndedError as error:
        _take_all_back(tuning, f"the confirming run failed: {error}")
        return None
    finally:
        for side in sides:
            side.close()
    explained_s = tuning.budget.step_s
    if abs(found.baseline_s / explained_s - 1) > _OTHER_SPEED:
        tuning.notes.append(
            f"the machine changed speed: the unchanged script took {1e3 * explained_s:.1f} ms a step when it was "
            f"explained, {1e3 * found.baseline_s:.1f} ms when the final plan was confirmed"
        )
    if found.gain.low <= 1.0:
        _take_all_back(tuning, "the confirming run did not show a gain")
    return found


def _take_all_back(tuning: Tuning, why: str) -> None:
    for remedy in list(tuning.kept):
        tuning.overturn(remedy, "undecided", why)
