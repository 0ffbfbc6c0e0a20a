"""The trained modules of a script, found from outside, and a way to put something around their calls.

A root is the outermost module that is called for training (its `training` flag set, gradients enabled) and holds a
parameter that some optimizer holds. Nothing is stored on the module: `copy.deepcopy`, `torch.save(model)` and
`state_dict` see what they always saw. Instead the `__call__` of its class is replaced, and looks the instance up.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from steptime.agent.apply.ground import Patches, after_steps

Inner = Callable[..., Any]
Around = Callable[[nn.Module, Inner, tuple[Any, ...], dict[str, Any]], Any]
"""`around(module, inner, args, kwargs)` runs the module by `inner(*args, **kwargs)` and gives its output."""

OUTERMOST = -1000
SEARCH_STEPS = 12
"""Optimizer steps during which modules that train are looked for; later ones are left alone. A critic that is trained
five times as often as its generator, under `no_grad` for that one, must not hide it."""


@final
@dataclass(frozen=True, kw_only=True)
class Treatment:
    """Something done to each root: once when it is found, and around each of its calls."""

    order: int
    """Smaller is further out."""
    found: Callable[[nn.Module], Around | None]
    """Prepares the root; gives what to put around its calls, None for nothing."""


@final
class Calls:
    """Instances whose calls are intercepted."""

    def __init__(self, patches: Patches, plain_call: Inner) -> None:
        self._patches = patches
        self._plain_call = plain_call
        self._arounds: dict[int, tuple[weakref.ref[nn.Module], list[tuple[int, Around]]]] = {}
        self._classes: set[type] = set()

    def wrap(self, module: nn.Module, order: int, around: Around) -> None:
        """Puts `around` around the calls of this instance; of several the smallest order is outermost."""
        entry = self._arounds.get(id(module))
        if entry is None or entry[0]() is not module:
            entry = (weakref.ref(module), [])
            self._arounds[id(module)] = entry
        entry[1].append((order, around))
        entry[1].sort(key=lambda one: -one[0])
        self._intercept(type(module))

    def _intercept(self, cls: type[nn.Module]) -> None:
        if cls in self._classes:
            return
        self._classes.add(cls)
        bases = cls.__mro__[: cls.__mro__.index(nn.Module)]
        own = next((vars(base)["__call__"] for base in bases if "__call__" in vars(base)), None)
        inner = own or self._plain_call
        arounds = self._arounds

        def __call__(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            entry = arounds.get(id(self))
            if entry is None or entry[0]() is not self:
                # looked up now: an instance not yet known as a root must still meet the search
                return (own or nn.Module.__call__)(self, *args, **kwargs)
            return _nested(self, entry[1], len(entry[1]), inner, args, kwargs)

        self._patches.replace(cls, "__call__", __call__)


def _nested(
    module: nn.Module,
    arounds: list[tuple[int, Around]],
    depth: int,
    inner: Inner,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    if depth == 0:
        return inner(module, *args, **kwargs)
    return arounds[depth - 1][1](module, lambda *a, **k: _nested(module, arounds, depth - 1, inner, a, k), args, kwargs)


@final
class Roots:
    """Finds the roots and gives each the treatments. Searching costs one Python call a module call, for a few steps."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._treatments: list[Treatment] = []
        self._listeners: list[Callable[[nn.Parameter], None]] = []
        self._held: set[int] = set()
        self._known: dict[int, weakref.ref[nn.Module]] = {}
        self._plain_call: Inner = nn.Module.__call__
        self._searching = False
        self._search_over = False
        self.calls = Calls(patches, self._plain_call)

    def treat(self, treatment: Treatment) -> None:
        """Gives every root found from now on this treatment."""
        self._treatments.append(treatment)
        self._treatments.sort(key=lambda one: one.order)
        self._install()

    def on_parameter(self, listener: Callable[[nn.Parameter], None]) -> None:
        """Tells `listener` each tensor that an optimizer is given to train."""
        self._listeners.append(listener)
        self._install()

    def _install(self) -> None:
        if self._searching:
            return
        self._searching = True
        self._watch_optimizers()
        self._patches.replace(nn.Module, "__call__", self._search_call())
        after_steps(self._patches, SEARCH_STEPS, self._stop_searching)

    def _stop_searching(self) -> None:
        # only what this class put there is taken away: another tool may have replaced it since
        self._search_over = True
        if getattr(nn.Module.__call__, "_steptime_search", False):
            nn.Module.__call__ = self._plain_call  # type: ignore[method-assign]

    def _watch_optimizers(self) -> None:
        original = Optimizer.add_param_group

        def add_param_group(optimizer: Optimizer, param_group: dict[str, Any]) -> None:
            original(optimizer, param_group)
            for parameter in optimizer.param_groups[-1]["params"]:
                if id(parameter) not in self._held:
                    self._held.add(id(parameter))
                    for listener in self._listeners:
                        listener(parameter)

        self._patches.replace(Optimizer, "add_param_group", add_param_group)

    def _search_call(self) -> Inner:
        plain = self._plain_call
        main = threading.main_thread()

        def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if self._search_over or not self._trains(module, main):
                return plain(module, *args, **kwargs)
            if self._known.get(id(module)) is None:
                self._known[id(module)] = weakref.ref(module)
                self.calls.wrap(module, OUTERMOST, self._quiet)
                for treatment in self._treatments:
                    around = treatment.found(module)
                    if around is not None:
                        self.calls.wrap(module, treatment.order, around)
            return type(module).__call__(module, *args, **kwargs)

        __call__._steptime_search = True  # type: ignore[attr-defined]
        return __call__

    def _quiet(self, module: nn.Module, inner: Inner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Ends the search inside a root: no part of it is a root, and torch.compile must not meet the search."""
        search = nn.Module.__call__
        if self._search_over or search is self._plain_call:
            return inner(*args, **kwargs)
        nn.Module.__call__ = self._plain_call  # type: ignore[method-assign]
        try:
            return inner(*args, **kwargs)
        finally:
            if not self._search_over:
                nn.Module.__call__ = search  # type: ignore[method-assign]

    def _trains(self, module: nn.Module, main: threading.Thread) -> bool:
        return (
            module.training
            and torch.is_grad_enabled()
            and threading.current_thread() is main
            and any(id(parameter) in self._held for parameter in module.parameters())
        )


def unwrapped(module: nn.Module) -> nn.Module:
    """The user's module inside a DistributedDataParallel."""
    return module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
