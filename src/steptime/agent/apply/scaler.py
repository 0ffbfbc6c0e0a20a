"""A dynamic loss scale for scripts that have none, with the growth and back-off of torch.amp.GradScaler.

`backward` is given the scale as its output gradient, so the loss itself stays what it is; each trained parameter's
hook divides by the scale before the gradient is accumulated. So accumulation, clipping and whatever else reads `.grad`
see true gradients. Scales are powers of two: multiplying and dividing by them is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from steptime.agent.apply.ground import Ground

# torch.amp.GradScaler's defaults: growth after 2000 clean steps, factors 2 and 1/2. It starts at 2**16 too
INITIAL_SCALE, GROWTH_STEPS, FACTOR = 2.0**16, 2000, 2.0
REPORT_SKIPS = (1, 10, 100, 1000)


@final
class LossScale:
    """The scale and its state; does nothing until `start`, and nothing while the script scales by itself."""

    def __init__(self, ground: Ground) -> None:
        self.scale = INITIAL_SCALE
        self.skipped = 0
        self._clean = 0
        self._ground = ground
        self._script_scales = False
        self._in_backward = False
        self._started = False
        self._inverse = 1.0 / self.scale
        ground.roots.on_parameter(self._watch)
        # now, not at the start: that may come inside the first step, from its closure
        ground.patches.on_undo(register_optimizer_step_pre_hook(self._before_step).remove)
        self._notice_script_scaler()

    def start(self, device: str) -> str | None:
        """Begins scaling; the reason why it cannot, when it cannot."""
        if self._script_scales:
            return None
        if not self._started:
            self._started = True
            self._scale_backward()
        return None

    def _notice_script_scaler(self) -> None:
        original = torch.amp.GradScaler.__init__

        def __init__(scaler: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            original(scaler, *args, **kwargs)
            self._script_scales = self._script_scales or scaler.is_enabled()

        self._ground.patches.replace(torch.amp.GradScaler, "__init__", __init__)

    def _watch(self, parameter: torch.Tensor) -> None:
        if parameter.requires_grad and parameter.is_leaf and parameter.is_floating_point():
            handle = parameter.register_hook(self._unscaled)
            self._ground.patches.on_undo(handle.remove)

    def _unscaled(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return gradient * self._inverse if self._in_backward else None

    def _scale_backward(self) -> None:
        tensor_backward = torch.Tensor.backward
        functional = torch.autograd.backward

        def backward(tensor: torch.Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: Any = False,
                     inputs: Any = None) -> None:  # fmt: skip
            if self._applies(gradient, create_graph, inputs) and tensor.numel() == 1:
                seed = torch.full_like(tensor, self.scale)
                self._scaled(lambda: tensor_backward(tensor, seed, retain_graph, create_graph, inputs))
            else:
                tensor_backward(tensor, gradient, retain_graph, create_graph, inputs)

        def functional_backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
            several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            plain = not args and not kwargs.get("create_graph") and kwargs.get("inputs") is None
            if plain and self._applies(grad_tensors, False, None) and all(one.numel() == 1 for one in several):
                seeds = [torch.full_like(one, self.scale) for one in several]
                self._scaled(lambda: functional(several, seeds, **kwargs))
            else:
                functional(tensors, grad_tensors, *args, **kwargs)

        self._ground.patches.replace(torch.Tensor, "backward", backward)
        self._ground.patches.replace(torch.autograd, "backward", functional_backward)

    def _applies(self, gradient: Any, create_graph: Any, inputs: Any) -> bool:
        # second derivatives and gradients of chosen inputs are the script's business: those stay unscaled
        return (
            gradient is None and not create_graph and inputs is None and not (self._script_scales or self._in_backward)
        )

    def _scaled(self, run: Callable[[], None]) -> None:
        self._in_backward = True
        self._inverse = 1.0 / self.scale
        try:
            run()
        finally:
            self._in_backward = False

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None:
            self._judge(optimizer)
            return None

        def judged() -> Any:
            loss = closure()
            self._judge(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": judged}
        return (optimizer, judged, *args[2:]), kwargs

    def _judge(self, optimizer: Any) -> None:
        """Drops gradients that overflowed, so that the step changes nothing, and moves the scale."""
        if not self._started or self._script_scales:
            return
        parameters = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        if not parameters:
            return
        if _finite([one.grad for one in parameters]):
            self._clean += 1
            if self._clean >= GROWTH_STEPS:
                self._clean = 0
                self.scale *= FACTOR
            return
        for one in parameters:
            one.grad = None
        self._clean = 0
        self.skipped += 1
        self.scale /= FACTOR
        if self.skipped in REPORT_SKIPS:
            why = f"{self.skipped} step(s) skipped after an overflow; the loss scale is now {self.scale:g}"
            self._ground.report("precision.loss_scale", self.scale >= 1.0, why)


def _finite(gradients: list[torch.Tensor]) -> bool:
    """One reduction over all gradients; a sum of norms is finite only where every element is."""
    dense = [one.coalesce().values() if one.is_sparse else one for one in gradients]
    norms = torch.ops.aten._foreach_norm(dense, float("inf"))
    return bool(torch.isfinite(torch.stack([one.float().to(norms[0].device) for one in norms])).all())
