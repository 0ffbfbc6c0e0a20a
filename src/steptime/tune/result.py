"""What tune found out, and its JSON (docs/tune.md describes every key)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from steptime.explain.remedies import Proposal
from steptime.tune.duel import Duel
from steptime.tune.quality import Quality
from steptime.tune.trials import Setup

VERSION = 1
Verdict = Literal["kept", "rejected", "undecided", "not tried", "refused"]


@dataclass(frozen=True, kw_only=True)
class RemedyResult:
    """One remedy: what was predicted, what was measured, what was decided. `duel` is None when it was not tried."""

    proposal: Proposal
    verdict: Verdict
    why: str
    duel: Duel | None = None
    compile_s: float = 0.0
    quality: Quality | None = None

    @property
    def name(self) -> str:
        """The remedy's name."""
        return self.proposal.remedy.name

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured seconds saved; None unless something was saved."""
        if self.duel is None or self.proposal.prediction is None or self.duel.saved_s[0] <= 0:
            return None
        return self.proposal.prediction.saved_s / self.duel.saved_s[0] - 1

    def to_json(self) -> dict[str, Any]:
        """One entry of `remedies`."""
        prediction = self.proposal.prediction
        found: dict[str, Any] = {"name": self.name, "verdict": self.verdict, "why": self.why}
        keys = ("predicted_s", "low_s", "high_s")
        values = (prediction.saved_s, prediction.low_s, prediction.high_s) if prediction else (None,) * 3
        found |= dict(zip(keys, values, strict=True))
        keys = ("measured_s", "measured_low_s", "measured_high_s")
        found |= dict(zip(keys, self.duel.saved_s if self.duel else (None,) * 3, strict=True))
        found |= {
            "prediction_error": self.error,
            "patch": dict(self.proposal.remedy.patch),
            "extra": str(self.proposal.remedy.extra) if self.proposal.remedy.extra else None,
            "basis": prediction.basis if prediction else "",
            "compile_s": self.compile_s,
            "pairs": self.duel.gain.pairs if self.duel else 0,
            "ratio": self.duel.gain.ratio if self.duel else None,
            "alpha": self.duel.gain.alpha if self.duel else None,
        }
        return found


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """The end of a tuning.

    `confirmation` is the duel of the final setup against the unchanged script in fresh processes: the published ratio.
    None: nothing was kept, or the budget was over. `explanation` is the unchanged script's, `explanation_after` the
    tuned one's (None: no time was left). `seeds`: pairs and steps of the quality test, seed of the order of blocks.
    """

    command: tuple[str, ...]
    setup: Setup
    remedies: tuple[RemedyResult, ...]
    confirmation: Duel | None
    quality: Quality
    step_s: float
    compile_s: float
    spent_s: float
    explanation: Mapping[str, Any] | None = None
    explanation_after: Mapping[str, Any] | None = None
    seeds: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Mapping[str, Any], ...] = ()
    diff: str | None = None
    run_id: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[RemedyResult, ...]:
        """The remedies of the final setup."""
        return tuple(remedy for remedy in self.remedies if remedy.verdict == "kept")

    @property
    def break_even_steps(self) -> int | None:
        """Steps after which compilation has paid for itself; None when nothing is compiled or saved."""
        if self.confirmation is None or not self.compile_s or self.confirmation.saved_s[0] <= 0:
            return None
        return int(self.compile_s / self.confirmation.saved_s[0]) + 1

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        duel = self.confirmation
        gain = duel.gain if duel else None
        return {
            "version": VERSION,
            "command": list(self.command),
            "speedup": {
                "ratio": gain.ratio if gain else 1.0,
                "low": gain.low if gain else 1.0,
                "high": gain.high if gain else 1.0,
                "alpha": gain.alpha if gain else None,
                "pairs": gain.pairs if gain else 0,
                "confirmed": gain is not None,
            },
            "quality": self.quality.to_json(),
            "step": {
                "before_s": duel.baseline_s if duel else self.step_s,
                "after_s": duel.candidate_s if duel else self.step_s,
            },
            "remedies": [remedy.to_json() for remedy in self.remedies],
            "plan": self.setup.plan.toml(),
            "extra": [str(path) for path in self.setup.extra],
            "diff": self.diff,
            "compile_s": self.compile_s,
            "break_even_steps": self.break_even_steps,
            "findings": [dict(finding) for finding in self.findings],
            "explanation": self.explanation,
            "explanation_after": self.explanation_after,
            "seeds": dict(self.seeds),
            "spent_s": self.spent_s,
            "run": self.run_id,
            "notes": list(self.notes),
        }
