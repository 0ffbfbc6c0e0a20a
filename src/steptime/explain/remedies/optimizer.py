"""The optimizer step: one kernel for all parameters, and gradients that are dropped instead of zeroed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steptime.explain.remedies.evidence import Evidence, Item, most, total
from steptime.explain.remedies.remedy import Family, Micro, Proposal, Remedy, Request, not_tried, proposed

FUSED = Remedy(
    name="fused_optimizer",
    patch={"optimizer.implementation": "fused"},
    why="one kernel updates all parameters instead of several ops a parameter",
    changes_numerics="rounding",
)
FOREACH = Remedy(
    name="foreach_optimizer",
    patch={"optimizer.implementation": "foreach"},
    why="a few horizontal kernels update all parameters",
    changes_numerics="rounding",
)
ZERO_GRAD = Remedy(
    name="zero_grad_set_to_none",
    patch={"optimizer.zero_grad": "set_to_none"},
    why="gradients are dropped instead of filled with zeros",
)


def _in_step(item: Item) -> bool:
    return item.phase == "optimizer" and "zero_" not in item.name and "zero_grad" not in item.caller


def _request(record: Mapping[str, Any]) -> Request | None:
    """The agent's record of an optimizer -> the micro-measurement; None where it says too little."""
    kind, count, numel = record.get("type"), record.get("parameters"), record.get("elements")
    if not kind or not count or not numel:
        return None
    shapes = record.get("shapes")
    # without shapes: as many equal parameters with as many elements; the count is what a for-loop's time follows
    sizes = [list(shape) for shape in shapes] if shapes else [[max(int(numel) // int(count), 1)]] * int(count)
    return {"kind": "optimizer", "class": kind, "shapes": sizes, "momentum": record.get("momentum") or 0}


def requests(evidence: Evidence) -> list[Request]:
    """Each optimizer of the script on parameters of its sizes."""
    if evidence.facts.get("device", "cpu") != "cpu":
        return []
    found = (_request(record) for record in evidence.facts.get("optimizers", ()))
    return [request for request in found if request is not None]


def propose(evidence: Evidence, micro: Micro) -> list[Proposal]:
    """Fused, foreach, and set_to_none."""
    return [*_implementations(evidence, micro), _zero_grad(evidence)]


def _implementations(evidence: Evidence, micro: Micro) -> list[Proposal]:
    items = evidence.where(_in_step)
    now, at_most = total(items), most(items)
    records = evidence.facts.get("optimizers", ())
    if not at_most:
        return [not_tried(remedy, "no time is spent in an optimizer") for remedy in (FUSED, FOREACH)]
    if any("_fused_" in item.name for _, item in items):
        return [not_tried(remedy, "the script's optimizer is fused already") for remedy in (FUSED, FOREACH)]
    known = [micro.get(request) for request in (_request(record) for record in records) if request is not None]
    found: list[Proposal] = []
    for remedy, name in ((FUSED, "fused_s"), (FOREACH, "foreach_s")):
        if remedy is FOREACH and any("fused_s" in one for one in known):
            found.append(not_tried(remedy, "fused does the same with fewer kernels"))
        elif remedy is FOREACH and any("_foreach_" in item.name for _, item in items):
            found.append(not_tried(remedy, "the script's optimizer is foreach already"))
        elif known and all(name in one and "script_s" in one for one in known):
            before, after = (sum(one[which] for one in known) for which in ("script_s", name))
            # many short ops: the overhead correction leaves a wide interval, in which the measurement alone decides
            now = min(max(now, 1e9 * before), at_most)
            share = 1 - after / before
            saved = now * share
            basis = (
                f"the optimizer takes {now / 1e6:.1f} ms a step (breakdown); {remedy.name.split('_')[0]} takes "
                f"{100 * after / before:.0f} % of the script's time on parameters of these sizes (measured)"
            )
            claims = tuple((index, max(share, 0.0)) for index, _ in items)
            found.append(
                proposed(
                    remedy,
                    saved_ns=saved,
                    low_ns=0.7 * saved if share > 0 else share * at_most,
                    high_ns=max(1.2 * saved, share * at_most) if share > 0 else 0.7 * saved,
                    basis=basis,
                    claims=claims,
                )
            )
        elif known:
            found.append(not_tried(remedy, "the optimizer's class has no such implementation on this device"))
        else:
            saved = 0.4 * now
            basis = f"the optimizer takes {now / 1e6:.1f} ms a step (breakdown); its parameters are not known"
            claims = tuple((index, 0.4) for index, _ in items)
            found.append(
                proposed(remedy, saved_ns=saved, low_ns=0.0, high_ns=0.85 * at_most, basis=basis, claims=claims)
            )
    return found


def _zero_grad(evidence: Evidence) -> Proposal:
    zeroing = evidence.where(
        lambda i: i.kind == "op" and i.name in ("aten::zero_", "aten::_foreach_zero_", "aten::fill_")
        and i.phase in ("optimizer", "other")
    )  # fmt: skip
    now = total(zeroing)
    if not now:
        return not_tried(ZERO_GRAD, "gradients are dropped already")
    return proposed(
        ZERO_GRAD,
        saved_ns=now,
        low_ns=0.5 * now,
        # accumulating into zeros reads and writes each gradient once more than storing it
        high_ns=2.0 * now,
        basis=f"filling gradients with zeros takes {now / 1e6:.2f} ms a step (breakdown)",
        claims=tuple((index, 1.0) for index, _ in zeroing),
    )


FAMILY = Family(
    name="optimizer",
    remedies=("fused_optimizer", "foreach_optimizer", "zero_grad_set_to_none"),
    requests=requests,
    propose=propose,
)
