"""Dropout masks on a CPU: torch draws them with one serial Mersenne twister, which a parallel generator replaces."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.explain.remedies.evidence import Claims, Evidence, Item
from steptime.explain.remedies.remedy import Family, Micro, Proposal, Remedy, Request, not_tried, proposed

REMEDY = Remedy(
    name="parallel_dropout",
    patch={"kernels.dropout": "parallel"},
    why="dropout masks come from a counter-based generator on all threads instead of a serial one",
    changes_random_stream=True,
)
_DRAWS = ("aten::bernoulli_", "aten::bernoulli", "aten::native_dropout")


def _draws(evidence: Evidence) -> list[tuple[int, Item]]:
    return evidence.where(lambda item: item.kind == "op" and item.name in _DRAWS and item.ns > 0)


def _shapes(evidence: Evidence) -> dict[tuple[int, ...], float]:
    """Shape of each mask -> how many are drawn a step."""
    found: dict[tuple[int, ...], float] = {}
    for _, item in _draws(evidence):
        if item.shapes and item.shapes[0]:
            found[item.shapes[0]] = found.get(item.shapes[0], 0.0) + item.calls
    return found


def _request(shape: tuple[int, ...]) -> Request:
    return {"kind": "dropout", "shape": list(shape)}


def requests(evidence: Evidence) -> list[Request]:
    """The op, ours and torch's, at the masks' shapes."""
    if evidence.facts.get("device", "cpu") != "cpu":
        return []
    return [_request(shape) for shape in _shapes(evidence)]


def _claims(evidence: Evidence, shapes: dict[tuple[int, ...], float]) -> Iterator[tuple[int, float]]:
    """On a CPU dropout is bernoulli_, div_ by 1 - p and a multiply, and a multiply backward, all of one shape."""
    for index, item in enumerate(evidence.items):
        if item.kind == "op" and item.caller == "aten::dropout":
            yield index, 1.0
            continue
        if item.kind != "op" or not item.shapes or item.shapes[0] not in shapes:
            continue
        masks = shapes[item.shapes[0]]
        if item.name in _DRAWS:
            yield index, 1.0
        elif (item.name == "aten::div_" and item.phase == "forward") or (
            item.name == "aten::mul" and len(item.shapes) > 1 and item.shapes[1] == item.shapes[0]
        ):
            yield index, min(masks / item.calls, 1.0) if item.calls else 0.0


def propose(evidence: Evidence, micro: Micro) -> list[Proposal]:
    """Now: draws, scaling and multiplies at the masks' shapes. After: the parallel op, measured at these shapes."""
    if evidence.facts.get("device", "cpu") != "cpu":
        return [not_tried(REMEDY, "dropout runs on the accelerator, whose generator is parallel")]
    if "compile" in evidence.kept:
        return [not_tried(REMEDY, "a compiled model draws its masks by torch.compile's own generator")]
    shapes = _shapes(evidence)
    if not shapes:
        return [not_tried(REMEDY, "no dropout mask is drawn in the step")]
    claims: Claims = tuple(_claims(evidence, shapes))
    now = sum(evidence.items[index].ns * share for index, share in claims)
    measured = {shape: micro.get(_request(shape)) for shape in shapes}
    if all("parallel_s" in found for found in measured.values()):
        after = sum(1e9 * found["parallel_s"] * shapes[shape] for shape, found in measured.items())
        alone = sum(1e9 * found["torch_s"] * shapes[shape] for shape, found in measured.items())
        # the op suffers in the step what torch's own suffers there
        likely = after * evidence.contention
        # the other road to the same number: both measured alone; where the two differ, the truth lies between
        apart = alone - after
        saved = now - likely
        basis = (
            f"{sum(shapes.values()):.0f} masks a step cost {now / 1e6:.1f} ms now (breakdown), "
            f"{likely / 1e6:.1f} ms with the parallel op (measured at their shapes)"
        )
        low, high = min(0.85 * saved, apart), max(now - after, 1.1 * saved)
    else:
        saved, low, high = 0.75 * now, 0.4 * now, 0.95 * now
        basis = f"masks cost {now / 1e6:.1f} ms a step (breakdown); the parallel op could not be measured here"
    return [proposed(REMEDY, saved_ns=saved, low_ns=low, high_ns=high, basis=basis, claims=_shrunk(claims, saved, now))]


def _shrunk(claims: Claims, saved: float, now: float) -> Claims:
    """Claims reduced to what is really saved: the parallel op's own time stays in the step."""
    share = max(saved / now, 0.0) if now else 0.0
    return tuple((index, part * share) for index, part in claims)


FAMILY = Family(name="dropout", remedies=("parallel_dropout",), requests=requests, propose=propose)
