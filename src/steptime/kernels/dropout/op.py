"""Dropout whose mask comes from a counter-based generator, on all threads, in the pass that multiplies.

torch's CPU dropout draws its mask from one Mersenne twister, serially: 4-14 ns an element, against about 0.7 here on
one thread. The mask is a function of (seed, position in memory), so it does not depend on the number of threads;
the seed is one draw from torch's default generator, so `torch.manual_seed` and saved generator states (activation
checkpointing) reproduce it. The values differ from torch's masks under the same seed; the distribution is the same.

The forward pass saves the mask, one bit an element: reading it back in the backward pass costs 0.2 ns an element,
generating it again about 0.4.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from steptime.kernels.build import why_unavailable
from steptime.kernels.cost import OpCost, time_op
from steptime.kernels.dropout import native
from steptime.kernels.eligible import draw_seed, eager_mode, plain_cpu

# Measured: a Python autograd function costs some 80 us a step more than torch's own two operations, and torch's mask
# 9 ns an element. Below this size torch is faster.
MINIMUM_ELEMENTS = 8192


def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """What torch.nn.functional.dropout returns, with a mask drawn in parallel.

    float32, float64 and bfloat16 on a CPU in eager mode, float16 through float32; everything else is torch's own:
    other devices, tensor subclasses, torch.compile, functorch, dispatch modes, fewer than MINIMUM_ELEMENTS elements,
    p = 0 and p = 1, evaluation. Under autocast the dtype stays the input's, as with torch.

    Raises:
        ValueError: p is outside [0, 1].
    """
    if not 0.0 <= p <= 1.0:  # torch's own message; not a data-dependent branch
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not (training and 0.0 < p < 1.0 and eager_mode() and plain_cpu(input) and _covers(input)):
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    if input.dtype == torch.float16:
        dropped = dropout(input.float(), p).half()
        return input.copy_(dropped) if inplace else dropped
    if inplace and not _dense(input):
        return input.copy_(dropout(input, p))
    if torch.is_grad_enabled() and input.requires_grad:
        return _Dropout.apply(input, p, draw_seed(), inplace)  # type: ignore[no-any-return]
    x = input if inplace or _dense(input) else input.contiguous()
    out = x if inplace else torch.empty_like(x)
    native.drop(x, out, None, p, draw_seed())
    return out


def available() -> str | None:
    """None when the kernel can be had on this machine, else the reason in one line. Builds it if need be."""
    return why_unavailable(native.library)


def warm() -> None:
    """Builds and loads the library, so that no training step pays for it (raises KernelUnavailable)."""
    native.library()


def measure(shape: tuple[int, ...], *, p: float = 0.1, dtype: torch.dtype = torch.float32) -> OpCost:
    """Seconds of dropout at this shape here, in about 20 ms. Leaves torch's generator as it was."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        grad = torch.ones(shape, dtype=dtype)
        return time_op(lambda: dropout(x, p), lambda out: torch.autograd.backward([out], [grad]))  # type: ignore[list-item]


def _covers(x: torch.Tensor) -> bool:
    return x.numel() >= max(1, MINIMUM_ELEMENTS) and (native.covers(x.dtype) or x.dtype == torch.float16)


def _dense(x: torch.Tensor) -> bool:
    """Whether the elements fill one block of memory, in any order of the dimensions: empty_like keeps such strides."""
    if x.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, p: float, seed: int, inplace: bool) -> torch.Tensor:
        if not _dense(x):
            x = x.contiguous()
        out = x if inplace else torch.empty_like(x)
        keep = native.new_mask(x)
        native.drop(x, out, keep, p, seed)
        ctx.save_for_backward(keep)
        ctx.form = _Form(x.shape, x.stride(), 1.0 / (1.0 - p))
        if inplace:
            ctx.mark_dirty(x)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (keep,) = ctx.saved_tensors
        return _apply_keep(grads[0], keep, ctx.form), None, None, None


class _Form(NamedTuple):
    """What the bits of a mask do not tell: size and dense strides of the tensor they belong to, and 1/(1-p)."""

    size: torch.Size
    stride: tuple[int, ...]
    scale: float


def _apply_keep(x: torch.Tensor, keep: torch.Tensor, form: _Form) -> torch.Tensor:
    if not (eager_mode() and plain_cpu(x)):
        # e.g. the vmapped gradients of torch.autograd.grad(is_grads_batched=True)
        return x * native.unpacked(keep, form.size, form.stride) * form.scale
    if torch.is_grad_enabled():
        return _ApplyKeep.apply(x, keep, form)  # type: ignore[no-any-return]
    return _kept(x, keep, form)


def _kept(x: torch.Tensor, keep: torch.Tensor, form: _Form) -> torch.Tensor:
    out = torch.empty_strided(form.size, form.stride, dtype=x.dtype)
    if x.stride() != form.stride:
        x = torch.empty_like(out).copy_(x)
    native.apply_keep(x, keep, out, form.scale)
    return out


class _ApplyKeep(torch.autograd.Function):
    """x * mask * scale: dropout's backward, and its own, so that derivatives of any order are right."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, keep: torch.Tensor, form: _Form) -> torch.Tensor:
        ctx.save_for_backward(keep)
        ctx.form = form
        return _kept(x, keep, form)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (keep,) = ctx.saved_tensors
        return _apply_keep(grads[0], keep, ctx.form), None, None
