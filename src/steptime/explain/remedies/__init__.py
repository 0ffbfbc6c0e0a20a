"""Remedies: what could make the step shorter, each with a gain that is predicted before it is tried."""

from __future__ import annotations

from dataclasses import replace

from steptime.explain.remedies import (
    attention,
    collectives,
    compiler,
    data,
    dropout,
    feed_forward,
    gelu,
    optimizer,
    precision,
    process,
)
from steptime.explain.remedies.evidence import Evidence, Item, evidence_of
from steptime.explain.remedies.micro import measure
from steptime.explain.remedies.remedy import Family, Micro, Prediction, Proposal, Remedy, Request
from steptime.explain.remedies.users import propose_own, read_remedy

FAMILIES: tuple[Family, ...] = (
    dropout.FAMILY,
    feed_forward.FAMILY,
    attention.FAMILY,
    gelu.FAMILY,
    data.FAMILY,
    optimizer.FAMILY,
    compiler.FAMILY,
    precision.FAMILY,
    process.FAMILY,
    collectives.FAMILY,
)
NAMES: tuple[str, ...] = tuple(name for family in FAMILIES for name in family.remedies)
"""Of every remedy but the user's own."""
LEAST_SHARE = 0.03
"""A remedy is tried when the upper bound of its prediction reaches this share of the step."""


def requests(evidence: Evidence) -> list[Request]:
    """All micro-measurements that the predictions want."""
    return [request for family in FAMILIES for request in family.requests(evidence)]


def with_contention(evidence: Evidence, micro: Micro) -> Evidence:
    """The evidence with its contention: torch's own ops in the step against the same ops measured alone.

    Dropout is what both sides know best: it is serial, so neither cache nor team size blurs the comparison. The
    factor is kept within 0.7 .. 2.5, beyond which the two did not measure the same thing.
    """
    step = alone = 0.0
    for _, item in evidence.where(lambda i: i.name == "aten::bernoulli_" and bool(i.shapes)):
        found = micro.get({"kind": "dropout", "shape": list(item.shapes[0])})
        if "torch_s" in found:
            # drawing is about 0.8 of torch's dropout at any size that matters; the rest is multiplies
            step += item.ns
            alone += 0.8e9 * found["torch_s"] * item.calls
    return replace(evidence, contention=min(max(step / alone, 0.7), 2.5)) if alone else evidence


def remedies_for(evidence: Evidence, micro: Micro, *, own: tuple[Proposal, ...] = ()) -> list[Proposal]:
    """All remedies with their predictions: those to try first, the most promising in front.

    A remedy whose upper bound is under `LEAST_SHARE` of the step is put aside with that reason.
    """
    found = [proposal for family in FAMILIES for proposal in family.propose(evidence, micro)]
    judged = [_judged(proposal, evidence.step_ns / 1e9) for proposal in [*own, *found]]
    return sorted(judged, key=lambda p: (p.verdict != "try", -_worth(p)))


def _worth(proposal: Proposal) -> float:
    """Seconds that a trial may count on: the prediction, or the middle of it and its low bound where that is a loss.

    A sure 39 ms goes before an unsure 42: what is tried first is found on a step that nothing else has changed yet,
    and in a short budget it may be all that is tried.
    """
    prediction = proposal.prediction
    if prediction is None:
        return 0.0
    return prediction.saved_s if prediction.low_s >= 0 else (prediction.saved_s + prediction.low_s) / 2


def _judged(proposal: Proposal, step_s: float) -> Proposal:
    prediction = proposal.prediction
    if proposal.verdict != "try" or prediction is None or prediction.high_s >= LEAST_SHARE * step_s:
        return proposal
    most = 100 * prediction.high_s / step_s
    why = f"would save at most {most:.1f} % of the step" if most > 0 else "would make the step longer"
    return replace(proposal, verdict="not tried", why=f"{why} ({prediction.basis})")


__all__ = [
    "FAMILIES",
    "LEAST_SHARE",
    "NAMES",
    "Evidence",
    "Family",
    "Item",
    "Micro",
    "Prediction",
    "Proposal",
    "Remedy",
    "Request",
    "evidence_of",
    "measure",
    "propose_own",
    "read_remedy",
    "remedies_for",
    "requests",
    "with_contention",
]
