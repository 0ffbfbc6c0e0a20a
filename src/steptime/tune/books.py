"""What a tuning writes into the ledger: the prediction before a trial, the measurement and the verdict after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from steptime.explain.explanation import Explanation
from steptime.explain.remedies import Proposal
from steptime.tune.result import RemedyResult, TuneResult

if TYPE_CHECKING:
    from steptime.ledger import Ledger


class Books(Protocol):
    """Where predictions and verdicts are kept."""

    def explained(self, explanation: Explanation) -> None:
        """Keeps the explanation of the unchanged script."""
        ...

    def predicted(self, proposal: Proposal) -> str | None:
        """Keeps a prediction; its id."""
        ...

    def decided(self, result: RemedyResult, prediction_id: str | None) -> None:
        """Keeps a measurement and a verdict."""
        ...


class NoBooks:
    """For tunings that leave no trace."""

    def explained(self, explanation: Explanation) -> None:
        """Keeps nothing."""

    def predicted(self, proposal: Proposal) -> str | None:
        """Keeps nothing."""
        return None

    def decided(self, result: RemedyResult, prediction_id: str | None) -> None:
        """Keeps nothing."""


class LedgerBooks:
    """One run of kind `tune` in the ledger."""

    def __init__(self, ledger: Ledger, command: list[str], cwd: Path) -> None:
        from steptime.hardware import fingerprint, look_at_machine
        from steptime.ledger import RunRow, collect

        self._ledger = ledger
        hardware = fingerprint(look_at_machine())
        self.run_id = ledger.add_run(RunRow(kind="tune", hardware=hardware, **collect(command, cwd)))

    def predicted(self, proposal: Proposal) -> str | None:
        """Writes the prediction; it is on disk when this returns."""
        prediction = proposal.prediction
        if prediction is None:
            return None
        return self._ledger.add_prediction(
            self.run_id,
            proposal.remedy.name,
            prediction.saved_s,
            prediction.low_s,
            prediction.high_s,
            prediction.basis,
        )

    def decided(self, result: RemedyResult, prediction_id: str | None) -> None:
        """Settles the prediction and writes the verdict."""
        gain = result.duel.gain if result.duel else None
        if result.duel is not None and prediction_id is not None:
            point, low, high = result.duel.saved_s
            self._ledger.settle_prediction(prediction_id, point, low, high)
        self._ledger.add_verdict(
            self.run_id,
            result.name,
            decision=result.verdict,
            why=result.why,
            speed_ratio=gain.ratio if gain else None,
            speed_low=gain.low if gain else None,
            speed_high=gain.high if gain else None,
            blocks=gain.pairs if gain else None,
            alpha=gain.alpha if gain else None,
            quality=result.quality.to_json() if result.quality else None,
            prediction_id=prediction_id,
        )

    def explained(self, explanation: Explanation) -> None:
        """Keeps the explanation of the unchanged script: it is there also when the tuning fails later."""
        self._ledger.write_explanation(self.run_id, explanation.to_json())

    def finished(self, result: TuneResult | None, *, status: str, exit_code: int) -> None:
        """Closes the run: its result as JSON, the blocks and losses of its trials as columns."""
        duel = result.confirmation if result else None
        if result is not None:
            # the explanation has a file of its own
            self._ledger.write_json(self.run_id, "tune", result.to_json() | {"explanation": None})
            if series := _series(result):
                self._ledger.write_columns(self.run_id, rank=0, pid=os.getpid(), series=series)
        self._ledger.finish_run(
            self.run_id,
            status=status,
            exit_code=exit_code,
            step_s=duel.candidate_s if duel else result.step_s if result else None,
            step_low_s=duel.baseline_s / duel.gain.high if duel else None,
            step_high_s=duel.baseline_s / duel.gain.low if duel else None,
            seeds=result.seeds if result else None,
            plan=result.setup.plan.agent_json() if result else None,
        )


def _series(result: TuneResult) -> dict[str, tuple[float, ...]]:
    """Seconds a step of each block of each duel, one entry a pair; each seed's loss of the quality test."""
    duels = {one.name: one.duel for one in result.remedies if one.duel is not None}
    if result.confirmation is not None:
        duels["confirmation"] = result.confirmation
    found: dict[str, tuple[float, ...]] = {}
    for name, duel in duels.items():
        baseline, candidate = zip(*duel.blocks, strict=True)
        found |= {f"{name}.baseline_s": baseline, f"{name}.candidate_s": candidate}
    for loss in result.quality.losses:
        found |= {f"loss {loss.site}.baseline": loss.baseline, f"loss {loss.site}.tuned": loss.tuned}
    return found
