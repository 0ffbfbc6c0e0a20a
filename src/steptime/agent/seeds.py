"""The script's random seeds: whether it sets any, and the offset that makes trials differ in a paired way.

Covered: `random.seed`, `numpy.random.seed`, `default_rng(int)`, `RandomState(int)`, `torch.manual_seed`,
`torch.cuda.manual_seed[_all]`, `torch.Generator().manual_seed`; Lightning's `seed_everything` and transformers'
`set_seed` go through these. Not covered: `random.Random(seed)`, numpy bit generators built by hand.
"""

from __future__ import annotations

import functools
import random
import sys
from typing import Any

UINT32 = 1 << 32


class SeedCalls:
    """How many seed calls the script made, and the int added to each."""

    def __init__(self, *, offset: int) -> None:
        self.offset = offset
        self.count = 0
        self._depth = 0

    def wrap(self, function: Any, *, modulus: int | None = None) -> Any:
        """`function` with the offset added to its first argument, when that is an int (of any integer type)."""

        @functools.wraps(function)
        def seeded(*args: Any, **kwargs: Any) -> Any:
            name = "seed" if "seed" in kwargs else "a" if "a" in kwargs else None
            value: Any = args[0] if args else kwargs.get(name) if name else None
            # torch.manual_seed seeds its generators through other entries here: one call, one offset
            if self._depth or value is None or not hasattr(value, "__index__"):
                return function(*args, **kwargs)
            self.count += 1
            moved: Any = value
            if self.offset:
                moved = int(value.__index__()) + self.offset
                moved = moved % modulus if modulus else moved
            if args:
                args = (moved, *args[1:])
            elif name:
                kwargs = {**kwargs, name: moved}
            self._depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1

        return seeded


def patch_random(calls: SeedCalls) -> None:
    """The standard library's generator."""
    random.seed = calls.wrap(random.seed)


def patch_numpy(calls: SeedCalls) -> None:
    """Numpy's legacy and new entries; called when `numpy.random` has been imported."""
    numpy_random: Any = sys.modules["numpy.random"]
    numpy_random.seed = calls.wrap(numpy_random.seed, modulus=UINT32)
    numpy_random.default_rng = calls.wrap(numpy_random.default_rng)
    original = numpy_random.RandomState

    class AnyRandomState(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    class RandomState(original, metaclass=AnyRandomState):
        """numpy's class; only the seed given to the constructor is moved."""

        def __new__(cls, seed: Any = None) -> Any:
            return calls.wrap(original, modulus=UINT32)(seed) if seed is not None else original()

    if calls.offset:
        numpy_random.RandomState = RandomState


def patch_torch(calls: SeedCalls) -> None:
    """Torch's global entries, and generators of the script's own when there is an offset to add."""
    import torch

    torch.manual_seed = torch.random.manual_seed = calls.wrap(torch.manual_seed)
    torch.cuda.manual_seed = torch.cuda.random.manual_seed = calls.wrap(torch.cuda.manual_seed)
    torch.cuda.manual_seed_all = torch.cuda.random.manual_seed_all = calls.wrap(torch.cuda.manual_seed_all)
    if not calls.offset:
        return
    original: Any = torch._C.Generator

    kind: Any = type(original)  # torch's classes have a metaclass of their own

    class AnyGenerator(kind):
        def __instancecheck__(self, instance: Any) -> bool:
            return isinstance(instance, original)

    class Generator(original, metaclass=AnyGenerator):
        """torch's class, whose seeds are moved by the session's offset."""

        def manual_seed(self, seed: int) -> Any:
            calls.wrap(super().manual_seed)(seed)
            return self

    torch.Generator = Generator


def seed_once(calls: SeedCalls) -> None:
    """Seeds an unseeded script: its trials then differ by the offset alone. Not counted as the script's own call."""
    import torch

    calls._depth += 1
    try:
        random.seed(calls.offset)
        torch.manual_seed(calls.offset)
        numpy_random: Any = sys.modules.get("numpy.random")
        if numpy_random is not None:
            numpy_random.seed(calls.offset % UINT32)
    finally:
        calls._depth -= 1
