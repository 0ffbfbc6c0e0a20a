"""What a tuning writes into the ledger: the prediction before a trial, the measurement and the verdict after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from steptime.explain.remedies import Proposal
from steptime.tune.result import RemedyResult, TuneResult

if TYPE_CHECKING:
    from steptime.ledger import Ledger


class Books(Protocol):
    """Where predictions and verdicts are kept."""

    def predicted(self, proposal: Proposal) -> str | None:
        """Keeps a prediction; its id."""
        ...

    def decided(self, result: RemedyResult, prediction_id: str | None) -> None:
        """Keeps a measurement and a verdict."""
        ...


class NoBooks:
    """For tunings that leave no trace."""

    def predicted(self, proposal: Proposal) -> str | None:
        """Keeps nothing."""
        return None

    def decided(self, result: RemedyResult, prediction_id: str | None) -> None:
        """Keeps nothing."""


class LedgerBooks:
    """One run of kind `tune` in the ledger."""

    def __init__(self, ledger: Ledger, command: list[str], cwd: Path) -> None:
        from steptime.ledger import RunRow, collect

        self._ledger = ledger
        self.run_id = ledger.add_run(RunRow(kind="tune", **collect(command, cwd)))

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

    def explained(self, explanation: dict[str, Any]) -> None:
        """Keeps the explanation of the unchanged script."""
        self._ledger.write_explanation(self.run_id, explanation)

    def finished(self, result: TuneResult | None, *, status: str, exit_code: int) -> None:
        """Closes the run."""
        duel = result.confirmation if result else None
        self._ledger.finish_run(
            self.run_id,
            status=status,
            exit_code=exit_code,
            step_s=duel.candidate_s if duel else result.step_s if result else None,
            plan=result.setup.plan.agent_json() if result else None,
        )
