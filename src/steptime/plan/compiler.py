"""Whether the model is compiled."""

from __future__ import annotations

from typing import Literal

from steptime.plan.section import Section, option


class CompilerSection(Section):
    """`torch.compile`; needs a C++ compiler and Python's header files."""

    mode: Literal["none", "default", "reduce-overhead", "max-autotune"] = option("none")
    """Mode of `torch.compile`. Training calls are compiled; evaluation stays eager."""

    scope: Literal["model", "blocks"] = option("model")
    """`model` compiles the trained module as one; `blocks` each layer of its repeated ModuleLists, which compiles
    one layer's code instead of all and keeps gradient communication overlapped."""
