"""How gradients travel between ranks."""

from __future__ import annotations

from typing import Literal

from steptime.plan.section import Section, option


class CollectivesSection(Section):
    """Settings of DistributedDataParallel; only where the script made no choice of its own."""

    bucket_cap_mb: float | None = option(None, gt=0)
    """Size in MiB of the buckets in which gradients are reduced. Unset: as the script has it."""

    gradient_as_bucket_view: bool | None = option(None)
    """Let gradients be views of the buckets, saving a copy each way. Unset: as the script has it."""

    static_graph: bool | None = option(None)
    """Promise that every step uses the same parameters. Unset: as the script has it."""

    compression: Literal["none", "fp16", "bf16"] = option("none")
    """Format in which gradients are reduced; they are averaged before they are rounded."""
