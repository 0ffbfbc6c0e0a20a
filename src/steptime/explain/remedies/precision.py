"""Number formats: autocast and the precision of float32 matrix products, judged at the shapes of the step."""

from __future__ import annotations

from steptime.explain.remedies.evidence import Evidence, Item, total
from steptime.explain.remedies.remedy import Family, Micro, Proposal, Remedy, Request, not_tried, proposed

BF16 = Remedy(
    name="autocast_bf16",
    patch={"precision.autocast": "bf16"},
    why="matrix products run in bfloat16",
    changes_numerics="precision",
)
FP16 = Remedy(
    name="autocast_fp16",
    patch={"precision.autocast": "fp16"},
    why="matrix products run in float16 under a dynamic loss scale",
    changes_numerics="precision",
)
MATMUL = Remedy(
    name="matmul_precision",
    patch={"precision.matmul": "medium"},
    why="float32 matrix products may round their inputs to bfloat16 inside",
    changes_numerics="precision",
)
TF32 = Remedy(
    name="matmul_tf32",
    patch={"precision.matmul": "high"},
    why="float32 matrix products may use TF32",
    changes_numerics="precision",
)
_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""Matrix product -> where its two factors begin among its inputs."""
_MOST_SHAPES = 6


def _products(evidence: Evidence) -> list[tuple[int, Item]]:
    return evidence.where(
        lambda i: i.kind == "op" and i.name in _PRODUCTS and len(i.shapes) >= _PRODUCTS[i.name] + 2
        and i.dtype in ("float", "float32", "fp32", "torch.float32", "")
    )  # fmt: skip


def _request(item: Item) -> Request:
    start = _PRODUCTS[item.name]
    return {"kind": "matmul", "a": list(item.shapes[start]), "b": list(item.shapes[start + 1])}


def _largest(evidence: Evidence) -> list[tuple[int, Item]]:
    return sorted(_products(evidence), key=lambda found: -found[1].ns)[:_MOST_SHAPES]


def requests(evidence: Evidence) -> list[Request]:
    """The six costliest products in float32, with casts to bfloat16, and at medium precision."""
    if evidence.facts.get("device", "cpu") != "cpu":
        return []
    return [_request(item) for _, item in _largest(evidence)]


def propose(evidence: Evidence, micro: Micro) -> list[Proposal]:
    """Autocast in both formats, and the two looser settings of float32 products."""
    if evidence.facts.get("device", "cpu") != "cpu":
        return [*_accelerator(evidence)]
    return [
        _on_cpu(BF16, evidence, micro, "bf16_s"),
        not_tried(FP16, "CPUs compute float16 no faster than bfloat16, with less range"),
        _on_cpu(MATMUL, evidence, micro, "medium_s"),
        not_tried(TF32, "TF32 is a format of NVIDIA's processors"),
    ]


def _on_cpu(remedy: Remedy, evidence: Evidence, micro: Micro, column: str) -> Proposal:
    products = _products(evidence)
    now = total(products)
    if not now:
        return not_tried(remedy, "the step has no float32 matrix product")
    before = after = 0.0
    for _, item in _largest(evidence):
        found = micro.get(_request(item))
        if column in found:
            before += item.ns
            after += item.ns * found[column] / found["fp32_s"]
    if not before:
        return proposed(
            remedy,
            saved_ns=0.0,
            low_ns=-0.5 * now,
            high_ns=0.6 * now,
            basis=f"float32 products take {now / 1e6:.1f} ms a step; bfloat16 could not be measured here",
        )
    share = 1 - after / before
    saved = now * share
    casts = "casts included" if remedy is BF16 else "inside oneDNN"
    return proposed(
        remedy,
        saved_ns=saved,
        low_ns=saved - 0.35 * now,
        # weights are cast once a step, not at each product, which the micro-measurement cannot know
        high_ns=saved + 0.15 * now if remedy is BF16 else saved + 0.05 * now,
        basis=(
            f"float32 products take {now / 1e6:.1f} ms a step (breakdown); at the costliest shapes bfloat16 "
            f"takes {100 * after / before:.0f} % of that ({casts}, measured)"
        ),
        claims=tuple((index, max(share, 0.0)) for index, _ in products),
    )


def _accelerator(evidence: Evidence) -> list[Proposal]:
    """Wide guesses: products at twice to eight times the rate, casts taken off."""
    products = _products(evidence)
    now = total(products)
    if not now:
        return [not_tried(remedy, "the step has no float32 matrix product") for remedy in (BF16, FP16, MATMUL, TF32)]
    basis = f"float32 products take {now / 1e6:.1f} ms a step (breakdown); tensor cores multiply 2-8 times faster"
    found = []
    for remedy, share in ((BF16, 0.7), (FP16, 0.7), (TF32, 0.5)):
        claims = tuple((index, share) for index, _ in products)
        found.append(
            proposed(remedy, saved_ns=share * now, low_ns=0.2 * now, high_ns=0.88 * now, basis=basis, claims=claims)
        )
    return [*found, not_tried(MATMUL, "autocast gives the same rate with a smaller change")]


FAMILY = Family(
    name="precision",
    remedies=("autocast_bf16", "autocast_fp16", "matmul_precision", "matmul_tf32"),
    requests=requests,
    propose=propose,
)
