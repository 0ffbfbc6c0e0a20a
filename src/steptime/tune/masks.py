"""Runs in the script's process, after a plan was applied (`extra` of session.json): judges the masks of dropout.

Takes `torch.nn.functional.dropout` and the dropouts inside `scaled_dot_product_attention` and the feed-forward block of
`nn.TransformerEncoderLayer` as the script will find them, and reports "masks". The default generator is left as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

P = 0.1


def apply(report: Callable[[str, bool, str], None]) -> None:
    """Reports ("masks", whether all masks are right, which are not and why)."""
    import torch

    # `import steptime...` would be another steptime where the script has one; the agent's is loaded already
    from steptime.kernels.dropout.distribution import check_masks

    state = torch.get_rng_state()
    try:
        judged = {
            "dropout": check_masks(_dropout, P, (64, 50, 64), 4),
            "nn.Dropout": check_masks(_module, P, (64, 50, 64), 4),
            "attention's dropout": check_masks(_attention, P, (16, 4, 64, 64), 4),
            "the feed-forward block's inner dropout": check_masks(_feed_forward(inner=True), P, (64, 50, 64), 4),
            "the feed-forward block's last dropout": check_masks(_feed_forward(inner=False), P, (64, 50, 64), 4),
        }
    finally:
        torch.set_rng_state(state)
    wrong = [f"{name}: {', '.join(found.reasons)}" for name, found in judged.items() if not found.ok]
    report("masks", not wrong, "; ".join(wrong) or "rate, independence and scale of the masks are right")


def _dropout(x, p):  # noqa: ANN001, ANN202 - torch is imported inside functions only
    import torch

    return torch.nn.functional.dropout(x, p, True)


def _module(x, p):  # noqa: ANN001, ANN202
    import torch

    # a real module made here would stand in the audit as one of the script's
    forward: Any = torch.nn.Dropout.forward
    return forward(SimpleNamespace(p=p, training=True, inplace=False), x)


def _attention(x, p):  # noqa: ANN001, ANN202
    """The masks of attention made visible: equal scores give weights 1/S, and values S * I return them elementwise."""
    import torch

    s = x.shape[-1]
    zeros = torch.zeros(*x.shape[:-1], s)
    values = (torch.eye(s) * s).expand(*x.shape[:-2], s, s).contiguous()
    out = torch.nn.functional.scaled_dot_product_attention(zeros, zeros * (1 / math.sqrt(s)), values, dropout_p=p)
    return out * x


def _feed_forward(*, inner: bool):  # noqa: ANN202
    """The masks of a feed-forward block made visible: with identity weights and a rectifier, ones pass through it."""
    import torch

    eye, zero = torch.eye(64), torch.zeros(64)

    def linear() -> torch.nn.Linear:
        made = torch.nn.Linear(64, 64, device="meta")
        made.weight, made.bias = torch.nn.Parameter(eye.clone()), torch.nn.Parameter(zero.clone())
        return made

    first, second = linear(), linear()

    def block(x, p):  # noqa: ANN001, ANN202
        layer = SimpleNamespace(
            training=True,
            linear1=first,
            linear2=second,
            activation=torch.nn.functional.relu,
            dropout=_silent_dropout(p if inner else 0.0),
            dropout2=_silent_dropout(0.0 if inner else p),
        )
        run: Any = torch.nn.TransformerEncoderLayer._ff_block
        return run(layer, x)

    return block


def _silent_dropout(p: float):  # noqa: ANN202
    """A dropout module made past its `__init__`, where the audit counts the script's own."""
    import torch

    module: Any = torch.nn.Dropout.__new__(torch.nn.Dropout)
    torch.nn.Module.__init__(module)
    module.p, module.inplace = p, False
    return module
