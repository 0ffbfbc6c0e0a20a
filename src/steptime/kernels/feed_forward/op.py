"""A transformer's feed-forward block on a CPU, its hidden layer never written to memory.

linear, activation, dropout, linear, dropout as five operations pass the hidden layer, four times as wide as the model,
ten times through memory and keep three copies of it for the backward pass. Here a block of rows goes through all five
in cache, in forward and in backward, which computes the hidden layer again: 7 products where torch does 6, and of the
hidden layer only the dropout mask is kept, a bit an element.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch

from steptime.kernels.build import why_unavailable
from steptime.kernels.cost import OpCost, time_op
from steptime.kernels.dropout.native import threshold, unpacked
from steptime.kernels.eligible import draw_seed, eager_mode, plain_cpu
from steptime.kernels.feed_forward import native

Activation = Literal["relu", "gelu"]

WIDTH_UNIT = 16  # widths are whole vectors of any machine

# Measured: with fewer hidden elements a Python autograd function costs what the cache saves.
MINIMUM_HIDDEN = 32768

# Beyond, the weights (in x hidden) and their gradients leave the L2 cache and torch's blocked products are the faster.
MAXIMUM_WEIGHTS = 256 * 1024


class Block(NamedTuple):
    """The weights of a block: w1 (H, I), b1 (H,), w2 (O, H), b2 (O,)."""

    w1: torch.Tensor
    b1: torch.Tensor
    w2: torch.Tensor
    b2: torch.Tensor


def feed_forward(
    x: torch.Tensor, block: Block, activation: Activation, *, p1: float = 0.0, p2: float = 0.0
) -> torch.Tensor:
    """drop2(linear2(drop1(activation(linear1(x))))), for x of shape (..., I); where `fits` says yes.

    p1 and p2 are the dropout probabilities, 0 <= p < 1. The masks are a function of one draw from torch's default
    generator and the place; a dropped element is 0 even where it was inf or NaN.
    """
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    seed = draw_seed() if p1 or p2 else 0
    form = _Form(activation, p1, p2, seed)
    needs = torch.is_grad_enabled() and (x.requires_grad or any(one.requires_grad for one in block))
    out = _FeedForward.apply(rows, *block, form) if needs else _forward(rows, block, form)[0]
    return out.view(*x.shape[:-1], block.w2.shape[0])  # type: ignore[union-attr]


def fits(x: torch.Tensor, block: Block) -> bool:
    """Whether the kernel takes this input: plain float32 on a CPU in eager mode outside autocast, all weights trained
    or all frozen, widths in whole vectors, sizes at which it was measured to be the faster.
    """
    hidden, width = block.w1.shape
    out = block.w2.shape[0]
    if not eager_mode() or torch.is_autocast_enabled("cpu") or not plain_cpu(x, *block):
        return False
    if any(one.dtype != torch.float32 for one in (x, *block)) or not all(one.is_contiguous() for one in block):
        return False
    if len({one.requires_grad for one in block}) != 1 or x.dim() < 2 or x.shape[-1] != width:
        return False
    if any(size % WIDTH_UNIT for size in (width, hidden, out)) or hidden * max(width, out) > MAXIMUM_WEIGHTS:
        return False
    return x.numel() // width * hidden >= MINIMUM_HIDDEN


def available() -> str | None:
    """None when the kernel can be had on this machine, else the reason in one line. Builds it if need be."""
    return why_unavailable(native.library)


def warm() -> None:
    """Builds and loads the library, so that no training step pays for it (raises KernelUnavailable)."""
    native.library()


def masks(seed: int, rows: int, width: int, p: float, which: Literal[1, 2]) -> torch.Tensor:
    """The mask of the first or second dropout of a call that drew `seed`: bool (rows, width), True where kept."""
    x = torch.zeros((rows, WIDTH_UNIT))
    hidden, out = (width, WIDTH_UNIT) if which == 1 else (WIDTH_UNIT, width)
    block = Block(torch.zeros(hidden, WIDTH_UNIT), torch.zeros(hidden), torch.zeros(out, hidden), torch.zeros(out))
    form = _Form("relu", p if which == 1 else 0.0, p if which == 2 else 0.0, seed)
    keep = _forward(x, block, form)[which]
    assert keep is not None
    return unpacked(keep, (rows, width), (width, 1))


def measure(
    rows: int, width: int, hidden: int, out: int, activation: Activation, *, p1: float = 0.1, p2: float = 0.1
) -> OpCost:
    """Seconds of a block at this shape here, in about 20 ms or five calls. Leaves torch's generator as it was."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        x = torch.randn(rows, width, requires_grad=True)
        block = Block(
            *(
                one.requires_grad_()
                for one in (
                    torch.randn(hidden, width) * width**-0.5,
                    torch.zeros(hidden),
                    torch.randn(out, hidden) * hidden**-0.5,
                    torch.zeros(out),
                )
            )
        )
        grad = torch.ones(rows, out)
        return time_op(
            lambda: feed_forward(x, block, activation, p1=p1, p2=p2),
            lambda y: torch.autograd.backward([y], [grad]),  # type: ignore[list-item]
        )


class _Form(NamedTuple):
    """What the tensors of a call do not tell."""

    activation: Activation
    p1: float
    p2: float
    seed: int


def _forward(
    x: torch.Tensor, block: Block, form: _Form
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The output (N, O) and the masks' bits, in storage order; x (N, I) contiguous."""
    hidden, out = block.w1.shape[0], block.w2.shape[0]
    y = torch.empty((x.shape[0], out))
    keep1, keep2 = _mask(x.shape[0] * hidden, form.p1), _mask(x.shape[0] * out, form.p2)
    call = _call(x, block, form, keep1, keep2)
    call.y = y.data_ptr()
    native.forward(call)
    return y, keep1, keep2


def _mask(elements: int, p: float) -> torch.Tensor | None:
    return torch.empty(elements // 8, dtype=torch.uint8) if p else None


def _call(
    x: torch.Tensor, block: Block, form: _Form, keep1: torch.Tensor | None, keep2: torch.Tensor | None
) -> native.Call:
    hidden, width = block.w1.shape
    return native.Call(
        rows=x.shape[0],
        in_=width,
        hidden=hidden,
        out=block.w2.shape[0],
        x=x.data_ptr(),
        **{name: getattr(block, name).data_ptr() for name in Block._fields},
        keep1=None if keep1 is None else keep1.data_ptr(),
        keep2=None if keep2 is None else keep2.data_ptr(),
        seed=form.seed,
        scale1=1.0 / (1.0 - form.p1),
        scale2=1.0 / (1.0 - form.p2),
        threshold1=threshold(form.p1),
        threshold2=threshold(form.p2),
        gelu=form.activation == "gelu",
        threads=torch.get_num_threads(),
    )


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        w1: torch.Tensor,
        b1: torch.Tensor,
        w2: torch.Tensor,
        b2: torch.Tensor,
        form: _Form,
    ) -> torch.Tensor:
        y, keep1, keep2 = _forward(x, Block(w1, b1, w2, b2), form)
        ctx.save_for_backward(x, w1, b1, w2, b2, keep1, keep2)
        ctx.form = form
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, w1, b1, w2, b2, keep1, keep2 = ctx.saved_tensors
        block, grad = Block(w1, b1, w2, b2), grads[0]
        if torch.is_grad_enabled() or not (eager_mode() and plain_cpu(grad)):
            return (*_differentiable_backward(ctx, x, block, keep1, keep2, grad), None)
        call = _call(x, block, ctx.form, keep1, keep2)
        grad = grad.contiguous()
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        grad_block = Block(*(torch.empty_like(one) for one in block))
        partials = torch.empty((call.threads, sum(one.numel() for one in block)))
        call.grad_y, call.partials = grad.data_ptr(), partials.data_ptr()
        call.grad_x = None if grad_x is None else grad_x.data_ptr()
        for name, one in zip(Block._fields, grad_block, strict=True):
            setattr(call, f"grad_{name}", one.data_ptr())
        native.backward(call)
        return grad_x, *grad_block, None


def _differentiable_backward(
    ctx: Any,
    x: torch.Tensor,
    block: Block,
    keep1: torch.Tensor | None,
    keep2: torch.Tensor | None,
    grad: torch.Tensor,
) -> tuple[torch.Tensor | None, ...]:
    """The gradients by torch's operations, for second derivatives and batched gradients: right, and slow."""
    create_graph = torch.is_grad_enabled()
    form: _Form = ctx.form
    with torch.enable_grad():
        inputs = [one.view_as(one) if one.requires_grad else one.detach() for one in (x, *block)]
        wanted = [one for one in inputs if one.requires_grad]
        rows, w1, b1, w2, b2 = inputs
        out = _dropped(reference(rows, Block(w1, b1, w2, b2), form.activation, keep1, form.p1), keep2, form.p2)
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=create_graph))
        return tuple(next(found) if one.requires_grad else None for one in inputs)


def reference(
    x: torch.Tensor, block: Block, activation: Activation, keep1: torch.Tensor | None, p1: float
) -> torch.Tensor:
    """linear2(drop1(activation(linear1(x)))) by torch's operations, its mask given as bits."""
    hidden = torch.addmm(block.b1, x, block.w1.t())
    active = torch.relu(hidden) if activation == "relu" else torch._C._nn.gelu(hidden)  # pyright: ignore[reportAttributeAccessIssue]  # unpatched
    return torch.addmm(block.b2, _dropped(active, keep1, p1), block.w2.t())


def _dropped(x: torch.Tensor, keep: torch.Tensor | None, p: float) -> torch.Tensor:
    return x if keep is None else x * unpacked(keep, x.shape, (x.shape[1], 1)) / (1.0 - p)
