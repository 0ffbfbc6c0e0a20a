"""Which implementation runs single operations."""

from __future__ import annotations

from typing import Literal

from steptime.plan.section import Section, option


class KernelsSection(Section):
    """Operations replaced by faster ones of the same meaning."""

    dropout: Literal["script", "parallel"] = option("script")
    """`parallel` draws CPU dropout masks from a counter-based generator (Philox) on all threads; the masks differ
    from torch's, their distribution does not."""

    attention: Literal["script", "fused"] = option("script")
    """`fused` keeps CPU attention with dropout on a fused path instead of torch's unfused one; in self-attention
    query, key and value stay side by side as their projection wrote them."""

    gelu: Literal["script", "fast"] = option("script")
    """`fast` computes the exact GELU of large float32 tensors on a CPU by vectors, within rounding of torch's."""

    feed_forward: Literal["script", "fused"] = option("script")
    """`fused` computes the feed-forward blocks of torch's transformer layers on a CPU a few rows at a time, all five
    operations in cache; the dropout masks differ from torch's, their distribution does not."""

    memory_format: Literal["script", "channels_last"] = option("script")
    """`channels_last` stores 4-D weights and inputs as NHWC, for convolutions."""
