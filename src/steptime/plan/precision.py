"""In which number formats the model computes."""

from __future__ import annotations

from typing import Literal

from steptime.plan.section import Section, option


class PrecisionSection(Section):
    """Number formats. Parameters and the loss stay float32 in every choice."""

    autocast: Literal["none", "bf16", "fp16"] = option("none")
    """Forward of the trained module under `torch.autocast`; its outputs are cast back to float32. `fp16` brings a
    dynamic loss scale unless the script has a GradScaler."""

    matmul: Literal["highest", "high", "medium"] | None = option(None)
    """`torch.set_float32_matmul_precision`: `high` allows TF32, `medium` bfloat16 inside float32 matrix products.
    Unset: as the script has it."""
