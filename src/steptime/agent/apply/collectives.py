"""Section `collectives`: DistributedDataParallel constructed with the plan's settings, gradients sent compressed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from steptime.agent.apply.ground import Ground

_SCRIPTS_DEFAULT = {
    "bucket_cap_mb": (None, 25),
    "gradient_as_bucket_view": (None, False),
    "static_graph": (None, False),
}
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def apply(section: Mapping[str, Any], ground: Ground) -> None:
    """Settings are given at construction, where the script left torch's default; the hook at the first forward."""
    settings = {name: section[name] for name in _SCRIPTS_DEFAULT if section.get(name) is not None}
    if settings:
        _patch_constructor(settings, ground)
    compression = section.get("compression", "none")
    if compression != "none":
        _patch_forward(_DTYPES[compression], compression, ground)


def _patch_constructor(settings: Mapping[str, Any], ground: Ground) -> None:
    original = DistributedDataParallel.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        given = signature.bind(self, *args, **kwargs).arguments
        changed = {}
        for name, value in settings.items():
            if name in given and given[name] not in _SCRIPTS_DEFAULT[name]:
                ground.report(f"collectives.{name}", False, f"the script chooses {given[name]}")
            elif name == "static_graph" and given.get("find_unused_parameters"):
                ground.report("collectives.static_graph", False, "the script looks for unused parameters")
            else:
                changed[name] = value
        bound = signature.bind(self, *args, **kwargs)
        bound.arguments.update(changed)
        original(*bound.args, **bound.kwargs)
        for name, value in changed.items():
            ground.report(f"collectives.{name}", True, f"DistributedDataParallel({name}={value})")

    ground.patches.replace(DistributedDataParallel, "__init__", __init__)


def _patch_forward(dtype: torch.dtype, name: str, ground: Ground) -> None:
    """A module takes one hook only, so the script has until its first forward to register its own."""
    register = DistributedDataParallel.register_comm_hook
    forward = DistributedDataParallel.forward
    settled: set[int] = set()

    @functools.wraps(register)
    def register_comm_hook(self: Any, state: Any, hook: Any) -> None:
        settled.add(id(self))
        ground.report("collectives.compression", False, f"the script registers {getattr(hook, '__name__', 'a hook')}")
        register(self, state, hook)

    @functools.wraps(forward)
    def first_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in settled:
            settled.add(id(self))
            reason = None
            if any(one.dtype != torch.float32 for one in self.module.parameters()):
                reason = "the gradients are not all float32"
            else:
                try:
                    register(self, self.process_group, compressed(dtype))
                except (RuntimeError, ValueError, TypeError) as error:
                    reason = f"the hook was refused: {error}"
            ground.report("collectives.compression", reason is None, reason or f"gradients travel as {name}")
        return forward(self, *args, **kwargs)

    ground.patches.replace(DistributedDataParallel, "register_comm_hook", register_comm_hook)
    ground.patches.replace(DistributedDataParallel, "forward", first_forward)


def compressed(dtype: torch.dtype) -> Callable[[Any, Any], torch.futures.Future[torch.Tensor]]:
    """A communication hook: the mean of a bucket's gradients over the ranks, rounded to `dtype` on the way.

    Written out because torch's bf16 hook refuses gloo by name, although gloo reduces bfloat16. The division comes
    before the rounding's sum, so that float16 does not overflow with many ranks.
    """
    import torch.distributed as dist

    def hook(group: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        small = gradients.div(group.size()).to(dtype)

        def widened(future: torch.futures.Future[Any]) -> torch.Tensor:
            return gradients.copy_(future.value()[0])

        work = dist.all_reduce(small, group=group, async_op=True)
        assert work is not None  # async_op=True always gives one
        return work.get_future().then(widened)

    # DistributedDataParallel compares annotations with its own types, and these are strings here
    hook.__annotations__.clear()
    return hook
