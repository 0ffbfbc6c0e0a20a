"""How the optimizer's arithmetic is carried out; never what it computes."""

from __future__ import annotations

from typing import Literal

from steptime.plan.section import Section, option


class OptimizerSection(Section):
    """Implementation of the optimizer step."""

    implementation: Literal["script", "foreach", "fused"] = option("script")
    """`fused` updates all parameters in one kernel, `foreach` in a few horizontal ones; only where the script made no
    choice of its own. `script`: as the script has it."""

    zero_grad: Literal["script", "set_to_none"] = option("script")
    """`set_to_none` drops gradients instead of filling them with zeros, also where the script asks for zeros."""
