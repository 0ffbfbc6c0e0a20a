"""Section `optimizer`: the flag for the fused or foreach step, and gradients dropped instead of zeroed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from steptime.agent.apply.ground import Ground


def apply(section: Mapping[str, Any], ground: Ground) -> None:
    """Sets the flag where a torch.optim optimizer is constructed without one."""
    implementation = section.get("implementation", "script")
    if implementation != "script":
        for cls in _supporting(implementation):
            _patch_constructor(cls, implementation, ground)
    if section.get("zero_grad") == "set_to_none":
        _patch_zero_grad(ground)


def _supporting(flag: str) -> list[type[Optimizer]]:
    classes = [one for one in vars(torch.optim).values() if inspect.isclass(one) and issubclass(one, Optimizer)]
    return [one for one in classes if flag in inspect.signature(one.__init__).parameters]


def _patch_constructor(cls: type[Optimizer], flag: str, ground: Ground) -> None:
    original = cls.__init__
    signature = inspect.signature(original)
    constructing = _CONSTRUCTING

    @functools.wraps(original)
    def __init__(self: Optimizer, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        # AdamW's constructor calls Adam's: only the outer one is the script's
        if id(self) in constructing:
            return original(self, *args, **kwargs)
        constructing.add(id(self))
        try:
            bound = signature.bind(self, *args, **kwargs)
            given = bound.arguments
            given["params"] = _materialised(given["params"])
            reason = _objection(self, given, flag)
            if reason is None:
                try:
                    original(*bound.args, **{**bound.kwargs, flag: True})
                except (RuntimeError, ValueError) as error:
                    reason = f"{type(self).__name__} refused it: {error}"
                else:
                    count = sum(len(group["params"]) for group in self.param_groups)
                    ground.report("optimizer.implementation", True, f"{type(self).__name__}, {count} tensors: {flag}")
                    return None
            ground.report("optimizer.implementation", False, reason)
            return original(*bound.args, **bound.kwargs)
        finally:
            constructing.discard(id(self))

    ground.patches.replace(cls, "__init__", __init__)


_CONSTRUCTING: set[int] = set()


def _materialised(params: Any) -> list[Any]:
    """The parameters as lists: a generator could be read only once, and the checks read it too."""
    if isinstance(params, torch.Tensor):
        return params  # type: ignore[return-value]  # torch's own error for this mistake is the right one
    return [
        {**one, "params": one["params"] if isinstance(one["params"], torch.Tensor) else list(one["params"])}
        if isinstance(one, dict)
        else one
        for one in params
    ]


def _objection(optimizer: Optimizer, given: Mapping[str, Any], flag: str) -> str | None:
    kind = type(optimizer).__name__
    if not type(optimizer).__module__.startswith("torch.optim"):
        return f"{kind} is the script's own class"
    if given.get("foreach") is not None or given.get("fused") is not None:
        return f"{kind}: the script chooses an implementation itself"
    if any(given.get(name) for name in ("differentiable", "capturable")):
        return f"{kind}: differentiable or capturable excludes {flag}"
    tensors = list(_tensors(given["params"]))
    if not tensors or not all(torch.is_floating_point(one) for one in tensors):
        return f"{kind}: not all parameters are floating point"
    devices = {one.device.type for one in tensors}
    if flag == "fused" and not devices <= set(_fused_devices()):
        return f"{kind}: no fused step on {', '.join(sorted(devices))}"
    if isinstance(given.get("lr"), torch.Tensor):
        return f"{kind}: the learning rate is a tensor"
    return None


def _fused_devices() -> Iterable[str]:
    from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

    return _get_fused_kernels_supported_devices()


def _tensors(params: Any) -> Iterable[torch.Tensor]:
    for one in [params] if isinstance(params, torch.Tensor) else params:
        if isinstance(one, dict):
            yield from _tensors(one["params"])
        else:
            # named_parameters() gives pairs
            yield one[1] if isinstance(one, tuple) else one


def _patch_zero_grad(ground: Ground) -> None:
    told = False

    def patch(owner: type[Any]) -> None:
        original = owner.zero_grad

        @functools.wraps(original)
        def zero_grad(self: Any, set_to_none: bool = True) -> None:
            nonlocal told
            if not set_to_none and not told:
                told = True
                ground.report(
                    "optimizer.zero_grad", True, f"{type(self).__name__}.zero_grad(set_to_none=False) overruled"
                )
            original(self, set_to_none=True)

        ground.patches.replace(owner, "zero_grad", zero_grad)

    patch(Optimizer)
    patch(nn.Module)
