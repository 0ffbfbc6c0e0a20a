"""The exact GELU on a CPU: torch calls an error function an element, which a fitted polynomial replaces."""

from __future__ import annotations

from steptime.explain.remedies.evidence import Claims, Evidence, Item, total
from steptime.explain.remedies.remedy import Family, Micro, Proposal, Remedy, Request, not_tried, proposed

REMEDY = Remedy(
    name="fast_gelu",
    patch={"kernels.gelu": "fast"},
    why="GELU is computed by a fitted polynomial on vectors instead of an exact error function",
    changes_numerics="rounding",
)
_FLOAT32 = ("float", "float32")
_MINIMUM_ELEMENTS = 8192
"""Below, the kernel leaves it to torch (`kernels.gelu.op.MINIMUM_ELEMENTS`; that module needs torch)."""


def _found(evidence: Evidence) -> list[tuple[int, Item]]:
    return evidence.where(
        lambda i: (
            i.kind == "op"
            and i.name in ("aten::gelu", "aten::gelu_backward")
            and i.dtype in _FLOAT32
            and i.elements >= _MINIMUM_ELEMENTS
            and i.ns > 0
        )
    )


def _shapes(found: list[tuple[int, Item]]) -> dict[tuple[int, ...], float]:
    """Shape -> calls a step, forward and backward counted as one."""
    calls: dict[tuple[tuple[int, ...], str], float] = {}
    for _, item in found:
        calls[item.shapes[0], item.name] = calls.get((item.shapes[0], item.name), 0.0) + item.calls
    shapes: dict[tuple[int, ...], float] = {}
    for (shape, _), count in calls.items():
        shapes[shape] = max(shapes.get(shape, 0.0), count)
    return shapes


def _request(shape: tuple[int, ...]) -> Request:
    return {"kind": "gelu", "shape": list(shape)}


def requests(evidence: Evidence) -> list[Request]:
    """The op, ours and torch's, at the shapes of the step."""
    if evidence.facts.get("device", "cpu") != "cpu":
        return []
    return [_request(shape) for shape in _shapes(_found(evidence))]


def propose(evidence: Evidence, micro: Micro) -> list[Proposal]:
    """Now: GELU and its backward, by the breakdown. After: the kernel, measured at these shapes."""
    if evidence.facts.get("device", "cpu") != "cpu":
        return [not_tried(REMEDY, "GELU runs on the accelerator")]
    if "compile" in evidence.kept:
        return [not_tried(REMEDY, "a compiled model computes GELU in loops of torch.compile's own")]
    found = _found(evidence)
    shapes = _shapes(found)
    if not shapes:
        return [not_tried(REMEDY, "the step has no float32 GELU of 8,192 elements or more")]
    now = total(found)
    measured = {shape: micro.get(_request(shape)) for shape in shapes}
    if not all("fast_s" in one for one in measured.values()):
        return [not_tried(REMEDY, "the kernel could not be measured here")]
    after = sum(1e9 * one["fast_s"] * shapes[shape] for shape, one in measured.items())
    alone = sum(1e9 * one["torch_s"] * shapes[shape] for shape, one in measured.items())
    saved = now - after * evidence.contention
    # the other roads to the same number: both measured alone, and their ratio carried over to the step
    others = (alone - after, now * (1 - after / alone))
    basis = (
        f"GELU costs {now / 1e6:.1f} ms a step now (breakdown), {after * evidence.contention / 1e6:.1f} ms "
        "with the kernel (measured at its shapes)"
    )
    share = max(saved / now, 0.0) if now else 0.0
    claims: Claims = tuple((index, share) for index, _ in found)
    return [
        proposed(
            REMEDY,
            saved_ns=saved,
            low_ns=min(*others, 0.85 * saved),
            high_ns=max(*others, now - after),
            basis=basis,
            claims=claims,
        )
    ]


FAMILY = Family(name="gelu", remedies=("fast_gelu",), requests=requests, propose=propose)
