"""The feed-forward blocks of torch's transformer layers on a CPU: their hidden layer passes memory some ten times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from steptime.explain.remedies.evidence import Claims, Evidence, Item
from steptime.explain.remedies.ratio import saved_by_ratio
from steptime.explain.remedies.remedy import Family, Micro, Proposal, Remedy, Request, not_tried, proposed

REMEDY = Remedy(
    name="fused_feed_forward",
    patch={"kernels.feed_forward": "fused"},
    why="a transformer's feed-forward block goes through cache a few rows at a time instead of through memory",
    changes_random_stream=True,
    changes_numerics="rounding",
)
_UNIT = 16
"""Widths are multiples of it. This and the two below are those of `kernels.feed_forward.op`, which needs torch."""
_MAXIMUM_WEIGHTS = 256 * 1024
_MINIMUM_HIDDEN = 32768
_ACTIVATIONS: Mapping[str, str] = {
    "aten::relu": "relu",
    "aten::relu_": "relu",
    "aten::clamp_min": "relu",
    "aten::threshold_backward": "relu",
    "aten::gelu": "gelu",
    "aten::gelu_backward": "gelu",
    "_Gelu": "gelu",
    "_GeluBackward": "gelu",
}


@dataclass(frozen=True, kw_only=True)
class _Block:
    """One layer's block: `rows` x `width` in and out, `hidden` wide within; `p` is not in the trace, and 0.1 or 0."""

    rows: int
    width: int
    hidden: int
    activation: str
    dropout: bool

    @property
    def fits(self) -> bool:
        """Whether the kernel takes it."""
        if self.width % _UNIT or self.hidden % _UNIT or self.rows * self.hidden < _MINIMUM_HIDDEN:
            return False
        return self.hidden * self.width <= _MAXIMUM_WEIGHTS

    @property
    def request(self) -> Request:
        sizes = {"rows": self.rows, "width": self.width, "hidden": self.hidden}
        return {"kind": "feed_forward", **sizes, "activation": self.activation, "p": 0.1 if self.dropout else 0.0}


def _product(evidence: Evidence, module: str) -> tuple[int, int, int] | None:
    """(N, in, out) of the forward product of a linear layer, by its shapes [out], [N, in], [in, out]."""
    for _, item in evidence.where(lambda i: i.module == module and i.name == "aten::addmm" and i.phase == "forward"):
        if len(item.shapes) >= 3 and len(item.shapes[1]) == 2 and item.dtype in ("float", "float32"):
            return (*item.shapes[1], item.shapes[2][1])  # type: ignore[return-value]
    return None


def _blocks(evidence: Evidence) -> dict[str, tuple[_Block, float]]:
    """Layer by module path -> its block and how often a step it runs; layers are known by the names torch gives."""
    found: dict[str, tuple[_Block, float]] = {}
    for _, item in evidence.where(lambda i: i.module.endswith(".linear1") and i.name == "aten::addmm"):
        layer = item.module.removesuffix(".linear1")
        first, second = _product(evidence, item.module), _product(evidence, f"{layer}.linear2")
        activation = next((_ACTIVATIONS[i.name] for i in evidence.items if _activates(i, layer)), None)
        if first is None or second is None or activation is None or first[1:] != (second[2], second[1]):
            continue
        draws = evidence.where(lambda i, at=f"{layer}.dropout": i.module == at and i.ns > 0)
        block = _Block(
            rows=first[0],
            width=first[1],
            hidden=first[2],
            activation=activation,
            dropout=bool(draws),
        )
        if block.fits:
            found[layer] = (block, item.calls)
    return found


def _activates(item: Item, layer: str) -> bool:
    return item.name in _ACTIVATIONS and item.module in (layer, f"{layer}.activation")


def _claims(evidence: Evidence, layers: Mapping[str, tuple[_Block, float]]) -> Claims:
    """All that happens in the layers' linear and dropout modules and their activation, forward and backward."""
    decoders = {item.module.removesuffix(".dropout3") for item in evidence.items if item.module.endswith(".dropout3")}
    parts = {
        f"{layer}.{part}"
        for layer in layers
        for part in ("linear1", "linear2", "dropout", "dropout3" if layer in decoders else "dropout2")
    }
    found = evidence.where(
        lambda i: i.kind == "op" and (i.module in parts or any(_activates(i, layer) for layer in layers))
    )
    return tuple((index, 1.0) for index, _ in found)


def _left(evidence: Evidence, claims: Claims, kernel_ns: float) -> Claims:
    """The claims, with what the kernel itself takes left to the products: no draw and no GELU is there any more."""
    products = {index for index, _ in claims if evidence.items[index].group == "matmul"}
    torchs = sum(evidence.items[index].ns for index in products)
    gone = 1.0 - min(kernel_ns / torchs, 1.0) if torchs else 1.0
    return tuple((index, gone if index in products else 1.0) for index, _ in claims)


def _possible(evidence: Evidence) -> str | None:
    if evidence.facts.get("device", "cpu") != "cpu":
        return "the feed-forward blocks run on the accelerator"
    if "compile" in evidence.kept:
        return "a compiled model has fused what it could of its feed-forward blocks"
    if "autocast_bf16" in evidence.kept:
        return "the kernel takes float32 outside autocast"
    return None if _blocks(evidence) else "no feed-forward block of a torch transformer layer has sizes that gain"


def requests(evidence: Evidence) -> list[Request]:
    """The block, ours and torch's, at the sizes of the step."""
    if _possible(evidence) is not None:
        return []
    return [block.request for block in {block for block, _ in _blocks(evidence).values()}]


def propose(evidence: Evidence, micro: Micro) -> list[Proposal]:
    """Now: the blocks' ops, by the breakdown. After: what the kernel leaves of them, measured at their sizes."""
    objection = _possible(evidence)
    if objection is not None:
        return [not_tried(REMEDY, objection)]
    layers = _blocks(evidence)
    claims = _claims(evidence, layers)
    now = math.fsum(evidence.items[index].ns * share for index, share in claims)
    measured = [(micro.get(block.request), calls) for block, calls in layers.values()]
    if not all("fused_s" in found for found, _ in measured):
        return [not_tried(REMEDY, "the kernel could not be measured here")]
    saved, low, high = saved_by_ratio(evidence, now, measured)
    basis = (
        f"{len(layers)} feed-forward blocks cost {now / 1e6:.1f} ms a step now (breakdown), "
        f"{1 - saved / now:.2f} of it in one pass (both measured at their sizes, caches cold)"
    )
    return [
        proposed(
            REMEDY,
            saved_ns=saved,
            low_ns=low,
            high_ns=high,
            basis=basis,
            claims=_left(evidence, claims, now - saved),
        )
    ]


FAMILY = Family(name="feed_forward", remedies=("fused_feed_forward",), requests=requests, propose=propose)
