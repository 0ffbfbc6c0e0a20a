"""Runs in the script's process (`extra` of session.json): tells the gradients of the first optimizer step.

Reports "gradients" once, as JSON: for each parameter in the optimizer's order its gradient's norm and share of zeros.
They show what the first loss cannot: gradients that underflow in a narrow format.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def apply(report: Callable[[str, bool, str], None]) -> None:
    """Waits for the first optimizer step."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def tell(optimizer: Any, args: Any, kwargs: Any) -> None:
        handle.remove()
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        # embeddings may have sparse gradients, sharded parameters distributed ones: their local dense values
        dense = [getattr(g, "to_local", lambda g=g: g)().to_dense().detach().double() for g in grads]
        values = {
            "norms": [float(g.norm()) for g in dense],
            "zeros": [float((g == 0).sum()) / max(g.numel(), 1) for g in dense],
        }
        report("gradients", True, json.dumps(values))

    handle = register_optimizer_step_pre_hook(tell)
