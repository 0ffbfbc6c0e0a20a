"""Scaled dot-product attention with dropout on a CPU, without torch's fall to separate matrix products.

With dropout_p > 0 torch's CPU attention leaves its fused path: it materialises the scores of the whole batch, draws
their dropout mask serially and keeps both for the backward pass. Here each (batch, head) stays in cache, the mask
comes from a counter-based generator, and the backward pass recomputes the probabilities from q, k and the rows'
maxima and sums. The mask itself, one bit a score, is saved up to SAVED_MASK_BYTES and generated again beyond.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from steptime.kernels.attention import native, reference
from steptime.kernels.build import why_unavailable
from steptime.kernels.cost import OpCost, time_op
from steptime.kernels.eligible import draw_seed, eager_mode, plain_cpu

SAVED_MASK_BYTES = 64 * 2**20
_MAXIMUM_DEPTH = 256

# Measured: below so many scores (B H T S) the ten small operations of torch cost no more than one Python autograd
# function.
MINIMUM_SCORES = 2048

# Measured: a thread here does the work of about two of torch's, and heads are the unit of work. With fewer heads than
# this for each thread torch's own, whose products use every thread, is the faster.
HEADS_A_THREAD = 0.5


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
    """What torch.nn.functional.scaled_dot_product_attention returns, its dropout mask drawn in parallel.

    Covers float32 on a CPU in eager mode, query (B, H, T, D), key and value (B, H, S, D), or three dimensions without
    H, any strides, D <= 256, 0 < dropout_p < 1, a bool or float32 mask without gradient. Everything else is torch's
    own function: no dropout, other dtypes (also under autocast), grouped queries, torch.compile, functorch, subclasses,
    shapes at which torch was measured to be faster (MINIMUM_SCORES, HEADS_A_THREAD).
    """
    if not covers(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        return torch._C._nn.scaled_dot_product_attention(  # type: ignore[attr-defined]
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if query.dim() == 3:
        mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
        return scaled_dot_product_attention(
            query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1), mask, dropout_p, is_causal, scale
        ).squeeze(1)
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    # strides are mended here, not in the autograd function: what it saves must be what it was given
    q, k, v, additive, seed = _rows(query), _rows(key), _rows(value), _additive(attn_mask), draw_seed()
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Attention.apply(q, k, v, additive, dropout_p, seed, is_causal, scale)  # type: ignore[no-any-return]
    return _forward(q, k, v, additive, dropout_p, seed, is_causal, scale, save_keep=False)[0]


def mask(seed: int, shape: tuple[int, int, int, int], p: float) -> torch.Tensor:
    """The dropout mask of a call that drew `seed`: bool (B, H, T, S), True where a probability is kept."""
    keep = torch.empty(shape, dtype=torch.bool)
    batches, heads, queries, keys = shape
    call = native.Call(
        batches=batches,
        heads=heads,
        queries=queries,
        keys=keys,
        keep=keep.data_ptr(),
        seed=seed,
        threshold=native.threshold(p),
        threads=torch.get_num_threads(),
    )
    native.run("mask", call)
    return keep


def available() -> str | None:
    """None when the kernel can be had on this machine, else the reason in one line. Builds it if need be."""
    return why_unavailable(native.library)


def warm() -> None:
    """Builds and loads the library, so that no training step pays for it (raises KernelUnavailable)."""
    native.library()


def measure(batches: int, heads: int, queries: int, keys: int, depth: int, dropout_p: float = 0.1) -> OpCost:
    """Seconds of attention at this shape here, heads split off a projection as nn.MultiheadAttention does.

    Takes about 20 ms, or five calls. Leaves torch's generator as it was.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        q = torch.randn(batches, queries, heads, depth).transpose(1, 2).requires_grad_()
        k = torch.randn(batches, keys, heads, depth).transpose(1, 2).requires_grad_()
        v = torch.randn(batches, keys, heads, depth).transpose(1, 2).requires_grad_()
        grad = torch.randn(batches, queries, heads, depth).transpose(1, 2)
        return time_op(
            lambda: scaled_dot_product_attention(q, k, v, dropout_p=dropout_p),
            lambda out: torch.autograd.backward([out], [grad]),  # type: ignore[list-item]
        )


def covers(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None,
    p: float,
    is_causal: bool,
    enable_gqa: bool,
) -> bool:
    """Whether the kernel takes a problem: q (B, H, T, D) or (B, T, D), k and v alike with S for T."""
    if not 0.0 < p < 1.0 or enable_gqa or not eager_mode() or torch.is_autocast_enabled("cpu"):
        return False
    if not plain_cpu(q, k, v) or any(x.dtype != torch.float32 or x.numel() == 0 for x in (q, k, v)):
        return False
    if q.dim() not in (3, 4) or k.shape != v.shape or q.shape[:-2] != k.shape[:-2] or q.shape[-1] != k.shape[-1]:
        return False
    heads = math.prod(q.shape[:-2])
    if q.shape[-1] > _MAXIMUM_DEPTH or heads * q.shape[-2] * k.shape[-2] < MINIMUM_SCORES:
        return False
    if heads < HEADS_A_THREAD * torch.get_num_threads():
        return False
    return attn_mask is None or (not is_causal and _covers_mask(attn_mask, (*q.shape[:-1], k.shape[-2])))


def _covers_mask(attn_mask: torch.Tensor, shape: tuple[int, ...]) -> bool:
    if not plain_cpu(attn_mask) or attn_mask.requires_grad or attn_mask.dtype not in (torch.bool, torch.float32):
        return False
    if not 2 <= attn_mask.dim() <= len(shape):
        return False
    sizes = zip(reversed(attn_mask.shape), reversed(shape), strict=False)
    return all(size in (1, full) for size, full in sizes)


def _additive(attn_mask: torch.Tensor | None) -> torch.Tensor | None:
    if attn_mask is None or attn_mask.dtype == torch.float32:
        return attn_mask
    return torch.zeros(attn_mask.shape).masked_fill_(~attn_mask, -torch.inf)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """The tensor with a last stride of 1, as the kernel wants it: a copy only where it is not so already."""
    return x if x.stride(-1) == 1 else x.contiguous()


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_mask: torch.Tensor | None,
        p: float,
        seed: int,
        is_causal: bool,
        scale: float,
    ) -> torch.Tensor:
        save_keep = q.numel() // q.shape[-1] * k.shape[-2] <= 8 * SAVED_MASK_BYTES
        out, stats, keep = _forward(q, k, v, attn_mask, p, seed, is_causal, scale, save_keep)
        ctx.save_for_backward(q, k, v, out, stats, keep, attn_mask)
        ctx.p, ctx.seed, ctx.is_causal, ctx.scale = p, seed, is_causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, stats, keep, attn_mask = ctx.saved_tensors
        grad = grads[0]
        if torch.is_grad_enabled() or not (eager_mode() and plain_cpu(grad)):
            return (*differentiable_backward(ctx, q, k, v, attn_mask, grad), *[None] * 5)
        grad = _rows(grad)
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        call = native.new_call(q, k, v, p=ctx.p, seed=ctx.seed, causal=ctx.is_causal, scale=ctx.scale)
        shape = (*q.shape[:-1], k.shape[-2])
        set_common(call, out, stats, keep, None if attn_mask is None else attn_mask.expand(shape))
        call.grad_out, call.grad_q = native.view(grad), native.view(grad_q)
        call.grad_k, call.grad_v = native.view(grad_k), native.view(grad_v)
        native.run("backward", call)
        return grad_q, grad_k, grad_v, *[None] * 5


def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None,
    p: float,
    seed: int,
    is_causal: bool,
    scale: float,
    save_keep: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The output, the rows' maxima and inverse sums (B, H, T, 2), and the mask's bits if they are to be saved."""
    shape = (*q.shape[:-1], k.shape[-2])
    # empty_like keeps the (B, T, H, D) order in memory that a projection has: joining the heads copies nothing
    out = torch.empty_like(q)
    stats = torch.empty((*q.shape[:-1], 2))
    keep = native.new_mask(shape) if save_keep else None  # type: ignore[arg-type]
    call = native.new_call(q, k, v, p=p, seed=seed, causal=is_causal, scale=scale)
    set_common(call, out, stats, keep, None if attn_mask is None else attn_mask.expand(shape))
    native.run("forward", call)
    return out, stats, keep


def set_common(
    call: native.Call,
    out: torch.Tensor,
    stats: torch.Tensor,
    keep: torch.Tensor | None,
    attn_mask: torch.Tensor | None,
) -> None:
    """Sets what forward and backward share: out (B, H, T, D), the rows' stats, the mask's bits, the additive mask."""
    call.out = native.view(out)
    call.stats = stats.data_ptr()
    if keep is not None:
        call.keep = keep.data_ptr()
    if attn_mask is not None:
        call.mask = native.view(attn_mask)


def differentiable_backward(
    ctx: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None,
    grad: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """The gradients by torch's operations, for second derivatives and batched gradients: right, and slow."""
    keep = mask(ctx.seed, (*q.shape[:-1], k.shape[-2]), ctx.p)  # type: ignore[arg-type]
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # aliases: where q, k and v are one tensor, each gradient is of its own use only
        q, k, v = (x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in (q, k, v))
        out = reference.attention(q, k, v, keep, p=ctx.p, attn_mask=attn_mask, is_causal=ctx.is_causal, scale=ctx.scale)
        return torch.autograd.grad(out, (q, k, v), grad, create_graph=create_graph)
