"""`kernels.attention` in nn.MultiheadAttention: query, key and value stay where their joint projection wrote them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from steptime.agent.apply.ground import Ground, is_compiling


def self_attention(ground: Ground, tell: Callable[[torch.Tensor], None]) -> None:
    """Replaces nn.MultiheadAttention's forward for self-attention with dropout, without weights returned and without
    masks but the causal one; everything else takes torch's way. `tell` gets the input of each call that is taken.
    """
    from steptime.kernels.attention import fits_packed, packed_attention

    original = nn.MultiheadAttention.forward

    @functools.wraps(original)
    def forward(
        self: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        def as_ever() -> tuple[torch.Tensor, torch.Tensor | None]:
            return original(
                self, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )

        if is_compiling() or need_weights or key_padding_mask is not None or (attn_mask is not None) != is_causal:
            return as_ever()
        if not (query is key is value and self.training and _plain(self)) or query.dim() != 3:
            return as_ever()
        if query.device.type != "cpu" or query.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return as_ever()
        if is_causal and (attn_mask.dim() != 2 or attn_mask.shape[0] != attn_mask.shape[1]):  # type: ignore[union-attr]
            return as_ever()
        projected = nn.functional.linear(query, self.in_proj_weight, self.in_proj_bias)
        if not fits_packed(projected, self.num_heads, self.dropout, batch_first=self.batch_first):
            return as_ever()
        tell(query)
        out = packed_attention(
            projected, self.num_heads, self.dropout, is_causal=is_causal, batch_first=self.batch_first
        )
        return nn.functional.linear(out, self.out_proj.weight, self.out_proj.bias), None

    ground.patches.replace(nn.MultiheadAttention, "forward", forward)


def _plain(attention: nn.MultiheadAttention) -> bool:
    """One projection for all three, and no keys or values beside those of the input."""
    alone = attention.bias_k is None and attention.bias_v is None and not attention.add_zero_attn
    return alone and attention._qkv_same_embed_dim and 0.0 < attention.dropout < 1.0
