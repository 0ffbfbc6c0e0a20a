"""Self-attention on the output of one joint projection, as nn.MultiheadAttention with query = key = value has it.

torch copies the projection apart into q, k and v, and its backward fills, adds and copies three gradients of the whole
back together. The kernel takes any strides: here q, k and v stay where the projection wrote them, and their gradients
are written where its backward reads them.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from steptime.kernels.attention import native
from steptime.kernels.attention.op import SAVED_MASK_BYTES, covers, differentiable_backward, set_common
from steptime.kernels.eligible import draw_seed, eager_mode, plain_cpu


def packed_attention(
    qkv: torch.Tensor, heads: int, dropout_p: float, *, is_causal: bool = False, batch_first: bool = True
) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) with dropout, times v, where `fits` says yes.

    qkv is (B, T, 3 E), or (T, B, 3 E) where not `batch_first`: q, k and v side by side, each `heads` heads wide. The
    result has its shape, with E in place of 3 E.
    """
    seed = draw_seed()
    if torch.is_grad_enabled() and qkv.requires_grad:
        return _PackedAttention.apply(qkv, heads, dropout_p, seed, is_causal, batch_first)  # type: ignore[no-any-return]
    return _forward(qkv, heads, dropout_p, seed, is_causal, batch_first)[0]


def fits(qkv: torch.Tensor, heads: int, dropout_p: float, *, batch_first: bool = True) -> bool:
    """Whether the kernel takes this projection: contiguous, and a problem that attention with dropout covers."""
    if qkv.dim() != 3 or not plain_cpu(qkv) or not qkv.is_contiguous() or qkv.shape[-1] % (3 * heads):
        return False
    return covers(*_split(qkv, heads, batch_first), None, dropout_p, False, False)


def _split(qkv: torch.Tensor, heads: int, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v as (B, H, T, D) views."""
    three = qkv.unflatten(-1, (3, heads, -1))
    three = three.permute(2, 0, 3, 1, 4) if batch_first else three.permute(2, 1, 3, 0, 4)
    q, k, v = three.unbind(0)
    return q, k, v


def _one(x: torch.Tensor, heads: int, batch_first: bool) -> torch.Tensor:
    """A tensor of shape (B, T, E), or (T, B, E), as a (B, H, T, D) view."""
    x = x.unflatten(-1, (heads, -1))
    return x.permute(0, 2, 1, 3) if batch_first else x.permute(1, 2, 0, 3)


def _forward(
    qkv: torch.Tensor, heads: int, p: float, seed: int, is_causal: bool, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The output, the rows' maxima and inverse sums (B, H, T, 2), and the mask's bits if they are to be saved."""
    q, k, v = _split(qkv, heads, batch_first)
    out = torch.empty((*qkv.shape[:-1], qkv.shape[-1] // 3))
    stats = torch.empty((*q.shape[:-1], 2))
    shape = (*q.shape[:-1], k.shape[-2])
    keep = native.new_mask(shape) if math.prod(shape) <= 8 * SAVED_MASK_BYTES else None  # type: ignore[arg-type]
    call = native.new_call(q, k, v, p=p, seed=seed, causal=is_causal, scale=q.shape[-1] ** -0.5)
    set_common(call, _one(out, heads, batch_first), stats, keep, None)
    native.run("forward", call)
    return out, stats, keep


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: torch.Tensor, heads: int, p: float, seed: int, is_causal: bool, batch_first: bool
    ) -> torch.Tensor:
        out, stats, keep = _forward(qkv, heads, p, seed, is_causal, batch_first)
        ctx.save_for_backward(qkv, out, stats, keep)
        ctx.heads, ctx.p, ctx.seed, ctx.is_causal, ctx.batch_first = heads, p, seed, is_causal, batch_first
        ctx.scale = (qkv.shape[-1] // (3 * heads)) ** -0.5
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        qkv, out, stats, keep = ctx.saved_tensors
        grad, heads, batch_first = grads[0], ctx.heads, ctx.batch_first
        q, k, v = _split(qkv, heads, batch_first)
        if torch.is_grad_enabled() or not (eager_mode() and plain_cpu(grad)):
            found = differentiable_backward(ctx, q, k, v, None, _one(grad, heads, batch_first))
            three = torch.stack(found)
            back = three.permute(1, 3, 0, 2, 4) if batch_first else three.permute(3, 1, 0, 2, 4)
            return (back.flatten(-3), *[None] * 5)
        grad = grad.contiguous()
        grad_qkv = torch.empty_like(qkv)
        call = native.new_call(q, k, v, p=ctx.p, seed=ctx.seed, causal=ctx.is_causal, scale=ctx.scale)
        set_common(call, _one(out, heads, batch_first), stats, keep, None)
        call.grad_out = native.view(_one(grad, heads, batch_first))
        parts = _split(grad_qkv, heads, batch_first)
        call.grad_q, call.grad_k, call.grad_v = (native.view(part) for part in parts)
        native.run("backward", call)
        return grad_qkv, *[None] * 5
