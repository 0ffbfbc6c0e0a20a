"""`kernels.feed_forward`: the feed-forward blocks of torch's transformer layers by steptime's kernel.

What a layer's block is made of is looked at in every call, so that hooks, adapters and activations of the user's own
keep their place: such a block is computed as ever.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as modules

from steptime.agent.apply.ground import Ground, is_compiling

if TYPE_CHECKING:
    from steptime.kernels.feed_forward import Activation

_LAYERS = ((nn.TransformerEncoderLayer, "dropout2"), (nn.TransformerDecoderLayer, "dropout3"))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def feed_forward(ground: Ground, tell: Callable[[torch.Tensor], None]) -> None:
    """Replaces the layers' `_ff_block`; `tell` is called with the input of each block that the kernel takes, and of
    each that is being compiled, where torch keeps its own.
    """
    from steptime.kernels import feed_forward as kernel

    reason = kernel.available()
    if reason is not None:
        ground.report("kernels.feed_forward", False, reason)
        return
    kernel.warm()
    for layer, last in _LAYERS:
        ground.patches.replace(layer, "_ff_block", _block(layer._ff_block, last, tell))


def _block(
    original: Callable[..., torch.Tensor], last: str, tell: Callable[[torch.Tensor], None]
) -> Callable[..., torch.Tensor]:
    from steptime.kernels.feed_forward import Block, feed_forward, fits

    @functools.wraps(original)
    def _ff_block(self: Any, x: torch.Tensor) -> torch.Tensor:
        if is_compiling():
            tell(x)
            return original(self, x)
        if not self.training:
            return original(self, x)
        first, second, dropout1, dropout2 = self.linear1, self.linear2, self.dropout, getattr(self, last)
        activation = activation_of(self.activation)
        kinds = ((first, nn.Linear), (second, nn.Linear), (dropout1, nn.Dropout), (dropout2, nn.Dropout))
        if activation is None or not all(_plain(one, kind) for one, kind in kinds):
            return original(self, x)
        if first.bias is None or second.bias is None or dropout1.p == 1.0 or dropout2.p == 1.0:
            return original(self, x)
        block = Block(first.weight, first.bias, second.weight, second.bias)
        if not fits(x, block):
            return original(self, x)
        tell(x)
        p1, p2 = (one.p if one.training else 0.0 for one in (dropout1, dropout2))
        return feed_forward(x, block, activation, p1=p1, p2=p2)

    return _ff_block


def activation_of(function: Any) -> Activation | None:
    """The activation that the kernel knows and `function` is: torch's function (or steptime's in its place), or a
    module of torch's class without hooks.
    """
    if isinstance(function, nn.Module):
        if _plain(function, nn.ReLU):
            return "relu"
        return "gelu" if _plain(function, nn.GELU) and function.approximate == "none" else None
    if function in (nn.functional.relu, torch.relu):
        return "relu"
    # kernels.gelu puts another function under this name, and a layer keeps the one it was made with
    named = getattr(function, "__name__", "") == "gelu"
    known = named and getattr(function, "__module__", "") in (nn.functional.__name__, "torch._C._nn", None)
    return "gelu" if known or function is nn.functional.gelu else None


def _plain(module: Any, kind: type[nn.Module]) -> bool:
    """Whether calling the module does what its class says and nothing else."""
    if type(module) is not kind or "forward" in vars(module) or modules._has_any_global_hook():
        return False
    return not any(vars(module).get(name) for name in _HOOKS)
