"""GELU by the normal distribution, on all threads, its error function a polynomial on vectors.

torch's CPU kernel calls an error function exact to an ulp. Here the lower tail of the distribution is the inverse of a
polynomial's 16th power and the derivative a rational function, both within 4e-7 absolute where |x| < 8 (torch's own: as
much, since 1 + erf cancels), gelu within 4e-6 of itself for x > -1. No exponential: 0.56 and 0.50 ns an element on a
core where torch takes 0.98 and 1.37.
"""

from __future__ import annotations

from typing import Any

import torch

from steptime.kernels.build import why_unavailable
from steptime.kernels.cost import OpCost, time_op
from steptime.kernels.eligible import eager_mode, plain_cpu
from steptime.kernels.gelu import native

# Below, a Python autograd function costs what the vectors save.
MINIMUM_ELEMENTS = 8192


def gelu(input: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """What torch.nn.functional.gelu returns, within rounding.

    Contiguous float32 of at least MINIMUM_ELEMENTS elements on a CPU in eager mode with approximate = "none";
    everything else is torch's own, its errors included.
    """
    if not (approximate == "none" and eager_mode() and fits(input)):
        return torch._C._nn.gelu(input, approximate=approximate)  # pyright: ignore[reportAttributeAccessIssue]  # unpatched
    if torch.is_grad_enabled() and input.requires_grad:
        return _Gelu.apply(input)  # type: ignore[no-any-return]
    return _forward(input)


def fits(input: torch.Tensor) -> bool:
    """Whether the kernel takes a tensor of this kind and size, in eager mode."""
    return (
        plain_cpu(input)
        and input.dtype == torch.float32
        and input.numel() >= max(1, MINIMUM_ELEMENTS)
        and input.is_contiguous()
    )


def available() -> str | None:
    """None when the kernel can be had on this machine, else the reason in one line. Builds it if need be."""
    return why_unavailable(native.library)


def warm() -> None:
    """Builds and loads the library, so that no training step pays for it (raises KernelUnavailable)."""
    native.library()


def measure(shape: tuple[int, ...]) -> OpCost:
    """Seconds of gelu at this shape here, in about 20 ms. Leaves torch's generator as it was."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        x = torch.randn(shape, requires_grad=True)
        grad = torch.ones(shape)
        return time_op(lambda: gelu(x), lambda out: torch.autograd.backward([out], [grad]))  # type: ignore[list-item]


def _forward(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    native.forward(x, out)
    return out


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return _forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        grad = grads[0]
        if torch.is_grad_enabled() or not (eager_mode() and plain_cpu(grad, x)):
            # torch's own knows its derivatives, and how to be vmapped (torch.autograd.grad(is_grads_batched=True))
            return torch.ops.aten.gelu_backward(grad, x)  # type: ignore[no-any-return]
        out = torch.empty_like(x)
        native.backward(grad.contiguous(), x, out)
        return out
