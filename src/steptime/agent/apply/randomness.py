"""Whether code uses the process's global random generators, told from their states."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

States = tuple[torch.Tensor, Any, Any]


def random_states() -> States:
    """The global states of torch, random and, where it is loaded, numpy. Takes some ten microseconds."""
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy is not None else None


def restore(states: States) -> None:
    """Puts the global generators back."""
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])


def same_states(one: States, other: States) -> bool:
    """Whether no global generator was used between the two."""
    same = torch.equal(one[0], other[0]) and one[1] == other[1]
    if one[2] is None or other[2] is None:
        return same
    return same and bool((one[2][1] == other[2][1]).all()) and one[2][2:] == other[2][2:]


def draws_randomly(dataset: Any) -> bool:
    """Whether reading the first sample of a map-style data set uses a global generator; the states are put back."""
    if len(dataset) == 0:
        return False
    states = random_states()
    dataset[0]
    moved = not same_states(states, random_states())
    restore(states)
    return moved
