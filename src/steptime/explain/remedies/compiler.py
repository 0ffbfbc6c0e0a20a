"""torch.compile: chains of memory-bound ops become one loop, and Python leaves the step."""

from __future__ import annotations

from steptime.explain.remedies.evidence import Evidence, Item, total
from steptime.explain.remedies.remedy import Family, Micro, Proposal, Remedy, Request, not_tried, proposed

REMEDY = Remedy(
    name="compile",
    patch={"compiler.mode": "default"},
    why="chains of small ops become single loops and Python leaves the model",
    changes_random_stream=True,
    changes_numerics="rounding",
    compiles=True,
)
_REQUEST: Request = {"kind": "compiler"}
_CHAINED = ("elementwise", "normalisation", "reduction", "copy", "other")
_DRAWN_ANEW = ("parallel_dropout", "fused_attention")
"""Kept remedies whose kernels a compiled model does not call: it traces torch's own dropout and attention."""
_CALL_NS = 4_000.0
"""An op dispatched from Python with autograd: about 4 us (facts: 2-6 us on server CPUs)."""


def requests(evidence: Evidence) -> list[Request]:
    """Whether a compiler and Python's headers are there."""
    return [_REQUEST]


def _inside(item: Item) -> bool:
    return item.phase in ("forward", "backward")


def propose(evidence: Evidence, micro: Micro) -> list[Proposal]:
    """The chains' memory traffic shrinks with their length, which the breakdown does not know: a wide interval.

    Random numbers claim nothing: inductor's Philox on a CPU takes as long as eager's Mersenne twister or longer
    (measured on a small transformer: 157 ms eager, 188 compiled; without dropout 71 and 65).
    """
    unavailable = micro.get(_REQUEST).get("unavailable")
    if unavailable:
        return [not_tried(REMEDY, f"unavailable: {unavailable}")]
    chained = evidence.where(lambda i: _inside(i) and i.kind == "op" and i.group in _CHAINED)
    python = evidence.where(lambda i: _inside(i) and i.kind == "idle" and i.name in ("python", "launch"))
    ops = evidence.where(lambda i: _inside(i) and i.kind == "op")
    dispatch = min(_CALL_NS * sum(item.calls for _, item in ops), 0.5 * total(ops))
    now = total(chained) + total(python)
    if not now:
        return [not_tried(REMEDY, "the step has no chain of memory-bound ops and no Python between ops")]
    random = total(evidence.where(lambda i: _inside(i) and i.kind == "op" and i.group == "random"))
    back = sum(evidence.kept.get(name, 0.0) for name in _DRAWN_ANEW)
    saved = 0.5 * total(chained) + 0.6 * total(python) + 0.3 * dispatch - back
    claims = (*((i, 0.5) for i, _ in chained), *((i, 0.6) for i, _ in python))
    return [
        proposed(
            REMEDY,
            saved_ns=saved,
            low_ns=-0.1 * evidence.step_ns - 0.4 * random - back,
            high_ns=min(0.9 * total(chained) + 0.95 * total(python) + dispatch, 0.95 * evidence.step_ns) - back,
            basis=(
                f"memory-bound chains take {total(chained) / 1e6:.1f} ms and Python between ops "
                f"{total(python) / 1e6:.1f} ms a step (breakdown); about half of it usually goes{_given_back(back)}"
            ),
            claims=claims,
        )
    ]


def _given_back(back_ns: float) -> str:
    if not back_ns:
        return ""
    return (
        f"; a compiled model falls back to torch's own dropout and attention, which gives back {back_ns / 1e6:.1f} ms"
    )


FAMILY = Family(name="compiler", remedies=("compile",), requests=requests, propose=propose)
