"""Attention with dropout on a CPU: torch falls from its fused path to one that writes every score matrix."""

from __future__ import annotations

from collections.abc import Mapping

from steptime.explain.remedies.evidence import Claims, Evidence, Item, total
from steptime.explain.remedies.ratio import saved_by_ratio
from steptime.explain.remedies.remedy import Family, Micro, Proposal, Remedy, Request, not_tried, proposed

REMEDY = Remedy(
    name="fused_attention",
    patch={"kernels.attention": "fused"},
    why="attention with dropout stays on a fused path instead of writing its score matrices",
    changes_random_stream=True,
    changes_numerics="rounding",
)
Shape = tuple[int, int, int, int, int]


def _inside(item: Item) -> bool:
    return item.kind == "op" and "scaled_dot_product" in item.caller


def _problems(evidence: Evidence) -> dict[Shape, float]:
    """(B, H, T, S, D) of each attention on the math path -> calls a step, from its softmax and its products."""
    found: dict[Shape, float] = {}
    scores = evidence.where(
        lambda i: i.kind == "op" and i.name == "aten::_softmax" and bool(i.shapes) and len(i.shapes[0]) == 4
    )
    for _, item in scores:
        b, h, t, s = item.shapes[0]
        widths = [
            other.shapes[0][2]
            for _, other in evidence.where(lambda i: i.name == "aten::bmm" and i.phase == "forward")
            if len(other.shapes) > 1 and other.shapes[0][:2] == (b * h, t) and other.shapes[1][2:] == (s,)
        ]
        if widths and (_inside(item) or item.phase == "forward"):
            found[(b, h, t, s, widths[0])] = found.get((b, h, t, s, widths[0]), 0.0) + item.calls
    return found


def _joint(evidence: Evidence) -> set[str]:
    """Modules that project query, key and value at once: nn.MultiheadAttention selects them from a tensor (3, ...)."""
    found = evidence.where(lambda i: i.name == "aten::select" and bool(i.shapes) and bool(i.shapes[0][:1] == (3,)))
    inside = {item.module for _, item in evidence.where(_inside)}
    return {item.module for _, item in found if item.module and item.module in inside}


def _whole(evidence: Evidence) -> bool:
    """Whether all attention of the step is self-attention of modules like nn.MultiheadAttention."""
    joint = _joint(evidence)
    softmaxes = evidence.where(lambda i: i.name == "aten::_softmax" and _inside(i) and i.phase == "forward")
    same = all(t == s for _, _, t, s, _ in _problems(evidence))
    return bool(joint) and same and all(item.module in joint for _, item in softmaxes)


def _request(problem: Shape) -> Request:
    return {"kind": "attention", **dict(zip("BHTSD", problem, strict=True)), "p": 0.1}


def _whole_request(problem: Shape) -> Request:
    return {**_request(problem), "kind": "self_attention"}


def _claims(evidence: Evidence, problems: dict[Shape, float]) -> Claims:
    """Forward: all inside the call. Backward: every op on a score-shaped tensor, and the products of its heads."""
    scores = {(b, h, t, s) for b, h, t, s, _ in problems}
    flat = {b * h for b, h, *_ in problems}

    def belongs(item: Item) -> bool:
        if item.kind != "op":
            return False
        if _inside(item) or any(shape in scores for shape in item.shapes):
            return True
        return item.name == "aten::bmm" and bool(item.shapes) and item.shapes[0][0] in flat

    return tuple((index, 1.0) for index, _ in evidence.where(belongs))


def requests(evidence: Evidence) -> list[Request]:
    """Both paths at the shapes found."""
    if _possible(evidence) is not None:
        return []
    of = _whole_request if _whole(evidence) else _request
    return [of(problem) for problem in _problems(evidence)]


def _possible(evidence: Evidence) -> str | None:
    if evidence.facts.get("device", "cpu") != "cpu":
        return "torch keeps attention fused on the accelerator, dropout or not"
    if "compile" in evidence.kept:
        return "a compiled model keeps torch's own attention"
    if not _problems(evidence):
        return "no attention is on the unfused path"
    scores = {(b, h, t, s) for b, h, t, s, _ in _problems(evidence)}
    draws = evidence.where(lambda i: "bernoulli" in i.name and bool(i.shapes) and i.shapes[0] in scores)
    # masks that a kept remedy already took over are still there, only smaller
    return None if draws else "attention has no dropout, so torch keeps it fused where it can"


def _of_modules(evidence: Evidence, measured: list[tuple[Mapping[str, float], float]]) -> Proposal:
    """Self-attention as a whole module, its projections included: the kernel also leaves what the projection wrote in
    its place, so parts of the gain lie outside the attention itself.
    """
    joint = _joint(evidence)
    found = evidence.where(lambda i: i.kind == "op" and i.module in joint)
    now = total(found)
    saved, low, high = saved_by_ratio(evidence, now, measured)
    share = max(saved / now, 0.0) if now else 0.0
    basis = (
        f"self-attention costs {now / 1e6:.1f} ms a step with its projections (breakdown), {1 - saved / now:.2f} of it "
        "fused (both measured at its shapes, caches cold)"
    )
    # no mask is drawn by torch any more, however long the rest takes
    claims = tuple((index, 1.0 if item.group == "random" else share) for index, item in found)
    return proposed(REMEDY, saved_ns=saved, low_ns=low, high_ns=high, basis=basis, claims=claims)


def propose(evidence: Evidence, micro: Micro) -> list[Proposal]:
    """Now: the math path's ops, forward and backward. After: the fused op, measured at the shapes found."""
    objection = _possible(evidence)
    if objection:
        return [not_tried(REMEDY, objection)]
    problems = _problems(evidence)
    whole = [(micro.get(_whole_request(problem)), calls) for problem, calls in problems.items()]
    if _whole(evidence) and all("fused_s" in found for found, _ in whole):
        return [_of_modules(evidence, whole)]
    claims = _claims(evidence, problems)
    now = sum(evidence.items[index].ns * share for index, share in claims)
    measured = {problem: micro.get(_request(problem)) for problem in problems}
    if all("fused_s" in found for found in measured.values()):
        after = sum(1e9 * found["fused_s"] * problems[problem] for problem, found in measured.items())
        likely = after * evidence.contention
        saved, low, high = now - likely, 0.75 * now - 1.25 * likely, now - 0.8 * after
        basis = (
            f"the unfused path costs {now / 1e6:.1f} ms a step (breakdown), "
            f"the fused op {likely / 1e6:.1f} ms (measured at its shapes)"
        )
    else:
        saved, low, high = 0.4 * now, 0.0, 0.8 * now
        basis = f"the unfused path costs {now / 1e6:.1f} ms a step; the fused op could not be measured here"
    share = max(saved / now, 0.0) if now else 0.0
    return [
        proposed(
            REMEDY,
            saved_ns=saved,
            low_ns=low,
            high_ns=high,
            basis=basis,
            claims=tuple((index, part * share) for index, part in claims),
        )
    ]


FAMILY = Family(name="attention", remedies=("fused_attention",), requests=requests, propose=propose)
