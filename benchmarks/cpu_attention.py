"""steptime's CPU attention with dropout against torch's, and against the chain of products with steptime's dropout.

    python benchmarks/cpu_attention.py [--quick] [--json FILE]

A run is forward and backward; heads are views of a projection, as nn.MultiheadAttention makes them. The sides
alternate run by run; figures as in cpu_dropout.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from cpu_dropout import interleaved, options, report
from torch.nn import functional as F  # noqa: N812 - the name torch's documentation uses

from steptime.kernels import attention as kernel
from steptime.kernels import dropout

# (B, H, T, D), causal
CASES = [
    ((64, 4, 50, 16), False),
    ((64, 4, 64, 32), False),
    ((8, 4, 256, 64), False),
    ((8, 4, 256, 64), True),
    ((2, 4, 1024, 64), False),
    ((4, 4, 256, 256), False),
]
P = 0.1


def chain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Attention as separate operations, dropout by steptime's kernel."""
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]))
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    return dropout.dropout(torch.softmax(scores, -1), P) @ v


def main() -> None:
    """Measures every case against both peers."""
    arguments = options(__doc__)
    kernel.warm()
    dropout.warm()
    rows: list[dict[str, object]] = []
    peers: dict[str, Callable[..., torch.Tensor]] = {
        "torch sdpa": lambda q, k, v, causal: F.scaled_dot_product_attention(q, k, v, None, P, causal),
        "chain": chain,
    }
    for (batches, heads, queries, depth), causal in CASES:
        q, k, v = (torch.randn(batches, queries, heads, depth).transpose(1, 2).requires_grad_() for _ in range(3))
        grad = torch.randn(batches, queries, heads, depth).transpose(1, 2)

        def step(
            attention: Callable[..., torch.Tensor],
            inputs: tuple[torch.Tensor, ...] = (q, k, v),
            grad: torch.Tensor = grad,
            causal: bool = causal,
        ) -> None:
            for x in inputs:
                x.grad = None
            attention(*inputs, causal).backward(grad)

        def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
            return kernel.scaled_dot_product_attention(q, k, v, None, P, causal)

        for peer, theirs in peers.items():
            name = f"attention {batches}x{heads}x{queries}x{depth}{' causal' if causal else ''} fp32"
            budget_s = 1.0 if arguments.quick else 10.0
            figures = interleaved(functools.partial(step, ours), functools.partial(step, theirs), budget_s)
            rows.append({"case": name, "peer": peer, "unit": "ms", **figures})
    report(rows, arguments.json)


if __name__ == "__main__":
    main()
