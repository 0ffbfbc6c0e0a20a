"""The mathematics of attention with a given dropout mask, in torch's own differentiable operations."""

from __future__ import annotations

import torch


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keep: torch.Tensor,
    *,
    p: float,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> torch.Tensor:
    """softmax(q k^T scale + attn_mask) o keep / (1 - p), times v; rows that may look nowhere give zeros.

    q (B, H, T, D), k and v (B, H, S, D), any float dtype; keep (B, H, T, S) bool; attn_mask float, broadcastable.
    The kernel's oracle (in float64), and its way to second derivatives.
    """
    scores = q @ k.transpose(-2, -1) * scale
    if attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    nowhere = (scores == -torch.inf).all(-1, keepdim=True)
    probabilities = torch.softmax(scores.masked_fill(nowhere, 0.0), -1).masked_fill(nowhere, 0.0)
    return (probabilities * keep / (1.0 - p)) @ v
