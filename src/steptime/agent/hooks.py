"""Where we stand in torch: around every optimizer's step, GradScaler's step, and backward.

Not `register_optimizer_step_post_hook`: it runs inside the profiler's `Optimizer.step` range, so a boundary there
would cut that range in two; and `torch.optim` is not the only place where `step` is wrapped (schedulers, compilers
set `step.hooked`). We wrap the class's `step` outside of torch's own wrapper when its first instance is made.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

MARK = "_steptime_wrapped"


class StepListener(Protocol):
    """What the hooks call; see `recorder.py`."""

    optimizer_steps: int

    def optimizer_begins(self, optimizer: Any) -> None:
        """Before the parameters change."""
        ...

    def optimizer_ends(self, optimizer: Any, skipped: bool) -> None:
        """After they changed, or after a GradScaler decided that they shall not."""
        ...

    def optimizer_made(self, optimizer: Any) -> None:
        """The script built an optimizer."""
        ...


def wrap_optimizers(listener: StepListener) -> None:
    """Every optimizer made or unpickled from now on reports its steps, whatever its class."""
    import torch

    base: Any = torch.optim.Optimizer
    running: list[Any] = []
    # __setstate__ (unpickling) and __init__ both come through here
    patched = base._patch_step_function

    @functools.wraps(patched)
    def patch_step_function(self: Any) -> None:
        patched(self)
        _wrap_class(type(self), listener, running)

    base._patch_step_function = patch_step_function
    made = base.__init__

    @functools.wraps(made)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        listener.optimizer_made(self)

    base.__init__ = initialise
    waiting = list(base.__subclasses__())
    while waiting:  # the import line may stand below the line that made the optimizer
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if getattr(cls.step, "hooked", False):
            _wrap_class(cls, listener, running)


def _wrap_class(cls: Any, listener: StepListener, running: list[Any]) -> None:
    step = cls.step
    if getattr(step, MARK, False):
        return
    import torch

    is_compiling = torch.compiler.is_compiling

    @functools.wraps(step)
    def timed_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        # a subclass that calls super().step() is one step; a step being traced by dynamo is none
        if is_compiling() or self in running:
            return step(self, *args, **kwargs)
        running.append(self)
        try:
            listener.optimizer_begins(self)
            result = step(self, *args, **kwargs)
        finally:
            running.pop()
        listener.optimizer_ends(self, False)
        return result

    setattr(timed_step, MARK, True)
    cls.step = timed_step


def wrap_grad_scaler(listener: StepListener, losses_scaled: Callable[[Any, Any], None]) -> None:
    """A step that the scaler skips still ends the training step; a scaled loss is known by its source."""
    import torch

    scaler: Any = torch.amp.GradScaler
    step, scale = scaler.step, scaler.scale

    @functools.wraps(step)
    def scaler_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = listener.optimizer_steps
        result = step(self, optimizer, *args, **kwargs)
        if listener.optimizer_steps == before:
            listener.optimizer_ends(optimizer, True)
        return result

    @functools.wraps(scale)
    def scaler_scale(self: Any, outputs: Any) -> Any:
        scaled = scale(self, outputs)
        if isinstance(outputs, torch.Tensor) and scaled is not outputs:
            losses_scaled(scaled, outputs)
        return scaled

    scaler.step, scaler.scale = scaler_step, scaler_scale


def wrap_backward(begins: Callable[[Any], None], ends: Callable[[], None]) -> None:
    """Reports each outermost backward call with the tensors it starts from."""
    import torch

    inside = [False]
    is_compiling = torch.compiler.is_compiling

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if inside[0] or is_compiling():
                return original(tensors, *args, **kwargs)
            inside[0] = True
            begins(tensors)
            try:
                return original(tensors, *args, **kwargs)
            finally:
                inside[0] = False
                ends()

        return backward

    tensor: Any = torch.Tensor
    tensor.backward = wrap(tensor.backward)
    torch.autograd.backward = wrap(torch.autograd.backward)


def wrap_loaders(iterated: Callable[[Any], None]) -> None:
    """Reports each DataLoader that is iterated with gradients on: scripts evaluate without."""
    import torch
    from torch.utils.data import DataLoader

    iterate = DataLoader.__iter__

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Any:  # noqa: N807
        if torch.is_grad_enabled():
            iterated(self)
        return iterate(self)

    DataLoader.__iter__ = __iter__


def caller_outside_torch() -> tuple[str, int]:
    """File and line of the innermost frame that is neither ours nor torch's."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        library = _library.get(name)
        if library is None:
            library = "/torch/" in name or "/steptime/agent/" in name or name.startswith("<frozen")
            _library[name] = library
        if not library:
            return name, frame.f_lineno
        frame = frame.f_back
    return "<unknown>", 0


_library: dict[str, bool] = {}
