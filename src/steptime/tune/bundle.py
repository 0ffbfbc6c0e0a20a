"""Small gains together: remedies of which each is too small to be proved alone, tried once as one.

A duel of some forty pairs on a shared machine tells gains of 3 to 5 % from none, and two processes of one script differ
by more than that; five remedies of 1 to 5 % each would all be left lying. Together they are one remedy with one
prediction, one duel and one verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

from steptime.explain.remedies import LEAST_SHARE, Evidence, Prediction, Proposal, Remedy
from steptime.explain.remedies.evidence import Claims
from steptime.explain.remedies.remedy import Numerics
from steptime.tune.result import RemedyResult

NAME = "small_gains"
LEAST_POINT = 0.005
"""A member is predicted to save this share of the step, or surely something."""
SMALL_SHARE = 0.12
"""A remedy predicted to save less than this share of the step, and surely something, is not tried alone while there
is another such: it takes two starts of two processes to prove it, since the luck of a process is as large."""
_P90 = NormalDist().inv_cdf(0.9)
_WHY = "small gains, together: "
_NUMERICS: tuple[Numerics, ...] = ("none", "rounding", "precision")


def bundled(results: Iterable[RemedyResult], evidence: Evidence, *, allowed: Sequence[str]) -> Proposal | None:
    """The bundle, or None when fewer than two remedies fit in or they are not worth a trial together.

    Args:
        results: of the remedies that are decided. Those put aside as too small, and those whose duel ended undecided
            with a positive estimate, may be members.
        evidence: the step that is left.
        allowed: the names that --only and --skip leave.
    """
    step_s = evidence.step_ns / 1e9
    estimates = [(one.proposal, _estimate(one)) for one in results if one.name in allowed and _may_join(one, step_s)]
    members: list[tuple[Proposal, Prediction]] = []
    taken: set[int] = set()
    fields: set[str] = set()
    for proposal, estimate in sorted(estimates, key=lambda pair: -pair[1].saved_s):
        if estimate.low_s <= 0 and estimate.saved_s < LEAST_POINT * step_s:
            continue
        items = {index for index, share in estimate.claims if share > 0}
        # two that take the same time away would be counted twice
        if items & taken or fields & set(proposal.remedy.patch):
            continue
        members.append((proposal, estimate))
        taken |= items
        fields |= set(proposal.remedy.patch)
    if len(members) < 2:
        return None
    prediction = _sum([estimate for _, estimate in members])
    if prediction.high_s < LEAST_SHARE * step_s:
        return None
    return Proposal(remedy=_union([proposal.remedy for proposal, _ in members]), prediction=prediction, verdict="try")


def small_ones(
    waiting: Sequence[Proposal], evidence: Evidence, *, aside: Iterable[RemedyResult] = (), allowed: Sequence[str] = ()
) -> list[Proposal]:
    """Those of the proposals that are better tried together than alone: two or more, or one that makes a bundle with
    remedies put aside before.

    Args:
        waiting: what would be tried alone.
        evidence: the step that is left.
        aside: results so far.
        allowed: the names that --only and --skip leave.
    """
    step_s = evidence.step_ns / 1e9
    small = [one for one in waiting if _is_small(one, step_s)]
    if len(small) != 1:
        return small
    (single,) = small
    joined = [*aside, RemedyResult(proposal=single, verdict="not tried", why="")]
    found = bundled(joined, evidence, allowed=[*allowed, single.remedy.name])
    return small if found is not None and single.remedy.name in members_of(found.remedy) else []


def _is_small(proposal: Proposal, step_s: float) -> bool:
    prediction, remedy = proposal.prediction, proposal.remedy
    if prediction is None or remedy.extra is not None or remedy.compiles:
        return False
    return prediction.low_s >= 0 and prediction.saved_s < SMALL_SHARE * step_s


def members_of(bundle: Remedy) -> tuple[str, ...]:
    """The names of the remedies in a bundle; of any other remedy none."""
    return tuple(bundle.why.removeprefix(_WHY).split(", ")) if bundle.name == NAME else ()


def _may_join(result: RemedyResult, step_s: float) -> bool:
    prediction, remedy = result.proposal.prediction, result.proposal.remedy
    if prediction is None or remedy.extra is not None or remedy.compiles:
        return False
    if result.verdict == "not tried":
        return prediction.high_s < LEAST_SHARE * step_s or _is_small(result.proposal, step_s)
    return result.verdict == "undecided" and result.duel is not None and result.duel.gain.ratio > 1


def _estimate(result: RemedyResult) -> Prediction:
    """The prediction; of a duel that decided nothing, prediction and measurement weighted by their precision."""
    prediction = result.proposal.prediction
    assert prediction is not None
    if result.duel is None:
        return prediction
    measured, low, high = result.duel.saved_s
    predicted_sd = max(prediction.high_s - prediction.low_s, 1e-9) / (2 * _P90)
    measured_sd = max(high - low, 1e-9) / (2 * NormalDist().inv_cdf(1 - result.duel.gain.alpha))
    weights = predicted_sd**-2, measured_sd**-2
    point = (weights[0] * prediction.saved_s + weights[1] * measured) / sum(weights)
    reach = _P90 / math.sqrt(sum(weights))
    return Prediction(
        saved_s=point, low_s=point - reach, high_s=point + reach, basis=prediction.basis, claims=prediction.claims
    )


def _sum(estimates: Sequence[Prediction]) -> Prediction:
    """Points add up; so do, squared, the distances to the bounds, since the members' errors are independent."""
    point = sum(one.saved_s for one in estimates)
    claims: Claims = tuple(claim for one in estimates for claim in one.claims)
    return Prediction(
        saved_s=point,
        low_s=point - math.sqrt(sum((one.saved_s - one.low_s) ** 2 for one in estimates)),
        high_s=point + math.sqrt(sum((one.high_s - one.saved_s) ** 2 for one in estimates)),
        basis=f"the sum of {len(estimates)} gains that are too small to be proved alone: "
        + " + ".join(f"{1e3 * one.saved_s:.1f}" for one in estimates)
        + " ms",
        claims=claims,
    )


def _union(remedies: Sequence[Remedy]) -> Remedy:
    return Remedy(
        name=NAME,
        patch={name: value for remedy in remedies for name, value in remedy.patch.items()},
        why=_WHY + ", ".join(remedy.name for remedy in remedies),
        changes_random_stream=any(remedy.changes_random_stream for remedy in remedies),
        changes_numerics=_NUMERICS[max(_NUMERICS.index(remedy.changes_numerics) for remedy in remedies)],
    )
