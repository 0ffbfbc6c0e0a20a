"""Section `precision`: autocast around the trained modules, float32 matrix products, a loss scale for fp16."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from steptime.agent.apply.ground import Ground
from steptime.agent.apply.roots import Around, Inner, Treatment
from steptime.agent.apply.scaler import LossScale

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ORDER = 20


def apply(section: Mapping[str, Any], ground: Ground) -> None:
    """Sets float32 precision now; autocast begins with each root's first training call."""
    if "matmul" in section:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(section["matmul"])
        ground.patches.on_undo(lambda: torch.set_float32_matmul_precision(before))
        ground.report("precision.matmul", True, f"float32 matrix products at {section['matmul']!r}, was {before!r}")
    if section.get("autocast", "none") != "none":
        name = section["autocast"]
        scale = LossScale(ground) if name == "fp16" else None
        ground.roots.treat(Treatment(order=ORDER, found=lambda root: _autocast(root, name, scale, ground)))


def _autocast(root: nn.Module, name: str, scale: LossScale | None, ground: Ground) -> Around | None:
    parameters = [one for one in root.parameters() if one.is_floating_point()]
    device = parameters[0].device.type
    dtype = DTYPES[name]
    kind = type(root).__name__
    reason = None
    if torch.is_autocast_enabled(device):
        reason = f"{kind} is called under the script's own autocast already"
    elif any(one.dtype in (torch.bfloat16, torch.float16) for one in parameters):
        reason = f"{kind} holds half-precision parameters already"
    elif scale is not None:
        reason = scale.start(device)
    if reason is not None:
        ground.report("precision.autocast", False, reason)
        return None
    ground.report("precision.autocast", True, f"forward of {kind} on {device} under {name} autocast")

    def around(module: nn.Module, inner: Inner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch.autocast(device, dtype=dtype):
            output = inner(*args, **kwargs)
        return widened(output)

    return around


def widened(output: Any) -> Any:
    """`output` with its half-precision tensors as float32, through tuples, lists, dicts and dataclasses.

    A Hugging Face ModelOutput is a dict and a dataclass at once, and must stay one: it is rebuilt by its class.
    """
    if isinstance(output, torch.Tensor):
        return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output
    if isinstance(output, tuple):
        values = [widened(one) for one in output]
        return type(output)(*values) if hasattr(output, "_fields") else type(output)(values)
    if isinstance(output, list):
        return [widened(one) for one in output]
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return _widened_dataclass(output)
    if isinstance(output, Mapping):
        values = {key: widened(value) for key, value in output.items()}
        return values if type(output) is dict else type(output)(values)  # type: ignore[call-arg]
    return output


def _widened_dataclass(output: Any) -> Any:
    fields = [field.name for field in dataclasses.fields(output) if field.init]
    return type(output)(**{name: widened(getattr(output, name)) for name in fields})
