"""Offsets land once on each seed, whichever way it is given; the plain libraries are the truth."""

import random
import types

import numpy as np
import pytest

from steptime.agent.seeds import SeedCalls


@pytest.mark.parametrize("offset", [0, 7])
def test_standard_library(offset):
    calls = SeedCalls(offset=offset)
    seed = calls.wrap(random.seed)
    seed(5)
    got = random.random()
    seed(a=5)
    assert random.random() == got == random.Random(5 + offset).random()
    assert calls.count == 2
    seed("text")
    assert random.random() == random.Random("text").random()
    assert calls.count == 2


def test_numpy_integers_and_the_range_of_the_legacy_seed():
    calls = SeedCalls(offset=7)
    made = calls.wrap(np.random.RandomState, modulus=1 << 32)
    assert made(np.int64(3)).rand() == np.random.RandomState(10).rand()
    assert made((1 << 32) - 1).rand() == np.random.RandomState(6).rand()
    fresh = calls.wrap(np.random.default_rng)
    assert fresh(seed=3).random() == np.random.default_rng(10).random()
    sequence = np.random.SeedSequence(3)
    assert fresh(sequence).random() == np.random.default_rng(3).random()


def test_a_seed_function_that_calls_another_is_offset_once():
    calls = SeedCalls(offset=7)
    inner = calls.wrap(lambda seed: seed)
    outer = calls.wrap(lambda seed: inner(seed))
    assert outer(1) == 8
    assert calls.count == 1


def test_methods_are_wrapped_like_functions():
    calls = SeedCalls(offset=2)
    holder = types.SimpleNamespace(seed=calls.wrap(lambda seed=None: seed))
    assert (holder.seed(4), holder.seed(seed=4), holder.seed()) == (6, 6, None)
