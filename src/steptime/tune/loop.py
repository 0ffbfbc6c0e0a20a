"""The closed loop: explain, predict, try, keep or take back, examine, confirm.

Read `tune` first. Greedy with rollback: the best prediction that is left is held against the best setup so far in an
interleaved duel; what proves faster stays, and the predictions of the rest are made anew on the step that is left.
The parts: waiting (what is tried next), attempt (one trial), proof (quality and confirmation), state (what they share).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from steptime.errors import SteptimeError
from steptime.explain.explanation import Explanation
from steptime.explain.findings import find
from steptime.explain.remedies import (
    NAMES,
    Evidence,
    Micro,
    evidence_of,
    measure,
    read_remedy,
    requests,
    with_contention,
)
from steptime.tune.attempt import attempt
from steptime.tune.books import Books
from steptime.tune.budget import Budget
from steptime.tune.duel import Duel
from steptime.tune.proof import confirm, examine
from steptime.tune.quality import Quality
from steptime.tune.result import TuneResult, Verdict
from steptime.tune.settings import TuneSettings
from steptime.tune.state import Tuning
from steptime.tune.trials import Trials
from steptime.tune.waiting import next_alone, next_bundle, open_waiting


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
    tuning = Tuning(
        trials=trials,
        settings=settings,
        books=books,
        say=say,
        explained=explained,
        micro=micro,
        own=own,
        evidence=with_contention(evidence, micro),
        budget=Budget(settings=settings, start_s=explained.start_s, step_s=explained.explanation.step.median_ns / 1e9),
        seconds_left=lambda: settings.budget_s - (clock() - begun),
    )
    try:
        open_waiting(tuning)
        while (proposal := next_alone(tuning)) is not None:
            attempt(tuning, proposal)
        if (bundle := next_bundle(tuning)) is not None:
            attempt(tuning, bundle)
    finally:
        tuning.close()
    quality = examine(tuning)
    confirmation = confirm(tuning)
    after = _explain_again(tuning, explain_s)
    return _result(tuning, command, quality, confirmation, after, spent_s=clock() - begun)


def _check_names(settings: TuneSettings, names: set[str]) -> None:
    for name in (*settings.only, *settings.skip):
        if name not in names:
            raise SteptimeError(
                f"there is no remedy {name}", where="--only/--skip", mend=f"one of {', '.join(sorted(names))}"
            )


def _measured(evidence: Evidence) -> Micro:
    return measure(requests(evidence), python=str(evidence.facts.get("python") or ""), threads=evidence.threads)


def _explain_again(tuning: Tuning, explain_s: float) -> Explanation | None:
    """The step under the final plan, for the picture before and after; only from time that is left over."""
    if not tuning.kept or tuning.seconds_left() < 1.3 * explain_s:
        return None
    tuning.say("explaining the tuned script")
    try:
        return tuning.trials.explain(tuning.best).explanation
    except SteptimeError as error:
        tuning.notes.append(f"the tuned script could not be explained: {error}")
        return None


def _result(
    tuning: Tuning,
    command: tuple[str, ...],
    quality: Quality,
    found: Duel | None,
    after: Explanation | None,
    *,
    spent_s: float,
) -> TuneResult:
    """Everything, with the verdicts written to the books."""
    for name, result in tuning.results.items():
        tuning.books.decided(result, tuning.predictions.get(name))
    order: tuple[Verdict, ...] = ("kept", "undecided", "rejected", "refused", "not tried")
    explanation = tuning.explained.explanation
    return TuneResult(
        command=command,
        setup=tuning.best,
        remedies=tuple(sorted(tuning.results.values(), key=lambda result: order.index(result.verdict))),
        confirmation=found if tuning.kept else None,
        quality=quality,
        step_s=explanation.step.median_ns / 1e9,
        compile_s=tuning.compile_s,
        spent_s=spent_s,
        explanation=explanation.to_json(),
        explanation_after=after.to_json() if after else None,
        seeds={
            "quality": len(quality.seeds),
            "quality_steps": tuning.budget.quality_steps,
            "blocks": tuning.settings.seed,
        },
        findings=explanation.findings or find(explanation),
        notes=tuple(tuning.notes),
    )
