"""Section `kernels`: CPU dropout, attention, GELU and feed-forward blocks by steptime's kernels, convolutions in NHWC.

`torch.nn.functional`'s names are replaced, which is where nn.Dropout, nn.MultiheadAttention, nn.TransformerEncoderLayer
and user code look them up. Evaluation and devices other than the CPU pass through to torch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import nn

from steptime.agent.apply.feed_forward import feed_forward
from steptime.agent.apply.ground import Ground, is_compiling
from steptime.agent.apply.roots import Around, Inner, Treatment
from steptime.agent.apply.self_attention import self_attention

FORMAT_ORDER = 10


def apply(section: Mapping[str, Any], ground: Ground) -> None:
    """Replaces the functions now; they report at their first use in training."""
    dropout = None
    if section.get("dropout") == "parallel":
        dropout = _dropout(ground)
    if section.get("attention") == "fused":
        _attention(dropout, ground)
    elif dropout is not None:
        _attention_with(dropout, ground)
    if section.get("gelu") == "fast":
        _gelu(ground)
    if section.get("feed_forward") == "fused":
        compiled = (False, "inside a compiled module torch.compile keeps its own feed-forward block")
        feed_forward(ground, _once(ground, "kernels.feed_forward", "in one pass over the rows, first for", compiled))
    if section.get("memory_format") == "channels_last":
        ground.roots.treat(Treatment(order=FORMAT_ORDER, found=lambda root: _channels_last(root, ground)))


def _dropout(ground: Ground) -> Callable[..., torch.Tensor] | None:
    from steptime.kernels import dropout as kernel
    from steptime.kernels.dropout.op import MINIMUM_ELEMENTS

    reason = kernel.available()
    if reason is not None:
        ground.report("kernels.dropout", False, reason)
        return None
    kernel.warm()
    compiled = (True, "compiled modules draw counter-based masks of torch.compile's own")
    tell = _once(ground, "kernels.dropout", "parallel masks, first for", compiled)
    original = F.dropout
    parallel = kernel.dropout

    @functools.wraps(original)
    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if not training or p == 0.0 or not _on_cpu(input):
            return original(input, p, training, inplace)
        if input.numel() >= MINIMUM_ELEMENTS:  # below, the kernel leaves it to torch
            tell(input)
        return parallel(input, p, training, inplace)

    ground.patches.replace(F, "dropout", dropout)
    return dropout


def _attention(dropout: Callable[..., torch.Tensor] | None, ground: Ground) -> None:
    from steptime.kernels import attention as kernel

    reason = kernel.available()
    if reason is not None:
        ground.report("kernels.attention", False, reason)
        return
    kernel.warm()
    compiled = (False, "inside a compiled module torch.compile keeps its own attention")
    tell = _once(ground, "kernels.attention", "fused, first for queries", compiled)
    half = "the fused kernel takes float32 outside autocast only; queries"
    refuse = _once(ground, "kernels.attention", half, compiled, ok=False)
    original = F.scaled_dot_product_attention
    fused = kernel.scaled_dot_product_attention

    @functools.wraps(original)
    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if dropout_p == 0.0 or not _on_cpu(query):
            # without dropout torch keeps its own fused path
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if query.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            refuse(query)
            if dropout is None or enable_gqa or is_compiling():
                return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            return unfused_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, dropout)
        tell(query)
        return fused(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    ground.patches.replace(F, "scaled_dot_product_attention", scaled_dot_product_attention)
    self_attention(ground, tell)


def _attention_with(dropout: Callable[..., torch.Tensor], ground: Ground) -> None:
    """Unfused attention as torch has it, written out, with the masks drawn by `dropout`."""
    original = F.scaled_dot_product_attention

    @functools.wraps(original)
    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if dropout_p == 0.0 or enable_gqa or not _on_cpu(query):
            return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return unfused_attention(query, key, value, attn_mask, dropout_p, is_causal, scale, dropout)

    ground.patches.replace(F, "scaled_dot_product_attention", scaled_dot_product_attention)


def _gelu(ground: Ground) -> None:
    from steptime.kernels import gelu as kernel

    reason = kernel.available()
    if reason is not None:
        ground.report("kernels.gelu", False, reason)
        return
    kernel.warm()
    compiled = (False, "inside a compiled module torch.compile keeps its own GELU")
    tell = _once(ground, "kernels.gelu", "by vectors, first for", compiled)
    original = F.gelu

    def gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
        if approximate != "none" or not (is_compiling() or kernel.fits(input)):
            return original(input, approximate=approximate)
        tell(input)
        return kernel.gelu(input)

    # nn.TransformerEncoderLayer keeps the function itself: a pickled model must name what torch alone has too
    gelu.__module__, gelu.__qualname__, gelu.__doc__ = F.__name__, "gelu", original.__doc__
    ground.patches.replace(F, "gelu", gelu)


def unfused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    dropout: Callable[..., torch.Tensor],
) -> torch.Tensor:
    """softmax(q k^T scale + mask) with dropout, times v; as `aten::_scaled_dot_product_attention_math` computes it.

    Shapes: query (..., T, D), key and value (..., S, D). The scale is split over q and k, and rows that are wholly
    masked give zeros, both as torch has it.
    """
    root = math.sqrt(1.0 / math.sqrt(query.size(-1)) if scale is None else scale)
    if is_causal:
        if attn_mask is not None:
            raise RuntimeError("scaled_dot_product_attention: attn_mask should not be set when is_causal=True")
        attn_mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
    scores = (query * root) @ (key.transpose(-2, -1) * root)
    if attn_mask is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        masked = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if masked else scores + attn_mask
        weights = torch.ops.aten._safe_softmax(scores, -1)
    return dropout(weights, dropout_p) @ value


def _on_cpu(tensor: Any) -> bool:
    return tensor.device.type == "cpu" and tensor.is_floating_point()


def _once(
    ground: Ground, name: str, eager: str, compiled: tuple[bool, str], *, ok: bool = True
) -> Callable[[torch.Tensor], None]:
    """Reports at the first call; inside torch.compile, where torch keeps its own operation, at trace time."""
    told = False

    def now(ok: bool, why: str) -> None:
        nonlocal told
        if not told:
            told = True
            ground.report(name, ok, why)

    def tell(tensor: torch.Tensor) -> None:
        if is_compiling():
            from torch._dynamo.comptime import comptime

            # dynamo either inlines this, where a plain call would become part of the compiled code, or keeps the
            # function whole and lets it run once on fake tensors, where the plain call is right
            comptime(lambda _: now(*compiled), lambda: now(*compiled))
        elif not told:
            now(ok, f"{eager} {tuple(tensor.shape)}")

    return tell


def _channels_last(root: nn.Module, ground: Ground) -> Around | None:
    weights = [one for one in root.parameters() if one.dim() == 4]
    if not weights:
        ground.report("kernels.memory_format", False, f"{type(root).__name__} has no 4-D weights")
        return None
    root.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    ground.report("kernels.memory_format", True, f"{len(weights)} weights of {type(root).__name__} and its 4-D inputs")

    def around(module: nn.Module, inner: Inner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return inner(*(_nhwc(one) for one in args), **{name: _nhwc(one) for name, one in kwargs.items()})

    return around


def _nhwc(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dim() == 4 and value.is_floating_point():
        return value.contiguous(memory_format=torch.channels_last)
    return value
