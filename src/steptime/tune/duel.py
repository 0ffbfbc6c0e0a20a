"""An interleaved A/B: two processes alive at once, of which one at a time runs a block of steps.

Blocks are paired, the order within a pair is random, so whatever the machine does over seconds hits both sides alike.
The pairs are judged at a few looks fixed beforehand, with the error shared among them (statistics.py).
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steptime.tune.statistics import Gain, alpha_each, judge
from steptime.tune.trials import Side

LOOKS = (10, 20, 48)
"""Pairs after which a duel is judged."""
BLOCK_S = 0.25
"""Length of a block. Many short blocks beat few long ones: a pair cancels only what lasts longer than itself. Simulated
(steps of 70 ms, AR(1) noise of 10 % with 0.2, 1 and 5 s of memory, 3 % white, 2 % of the steps half as long again, the
error shared among 6 remedies): in the same 30 s, 48 pairs of 0.25 s (looks at 8, 20, 48) find a gain of 5 % in 50, 78
and 100 of 100 duels,
24 pairs of 0.5 s in 18, 33 and 81; of no gain neither found more than 2.5 % (its bound is 0.8 %, n = 120)."""
SURE = 1.25
"""A gain whose lower bound is above this is no luck of a process."""
_WARM_STEPS = 3
_FEWEST_STEPS = 2
_MOST_STEPS = 1000
_PACE_BLOCKS = 5


@dataclass(frozen=True, kw_only=True)
class Duel:
    """What the blocks of both sides showed.

    `baseline_s` and `candidate_s` are the median block's seconds a step; `blocks` the pairs (baseline, candidate) in
    order; `steps` the counted steps of a block.
    """

    gain: Gain
    baseline_s: float
    candidate_s: float
    steps: int
    blocks: tuple[tuple[float, float], ...]
    out_of_time: bool = False

    @property
    def saved_s(self) -> tuple[float, float, float]:
        """Seconds a step saved: point, low, high; the ratio's interval carried to the baseline's median block."""
        return tuple(self.baseline_s * (1 - 1 / ratio) for ratio in (self.gain.ratio, self.gain.low, self.gain.high))  # type: ignore[return-value]  # a generator of three


def duel(
    baseline: Side,
    candidate: Side,
    *,
    alpha: float = 0.05,
    remedies: int = 1,
    rng: random.Random,
    seconds_left: Callable[[], float],
    block_s: float = BLOCK_S,
    settle: int = 1,
    looks: tuple[int, ...] = LOOKS,
) -> Duel:
    """Runs pairs of blocks until they decide, the looks are used up, or the time is.

    Args:
        baseline: what runs now.
        candidate: what may be faster.
        alpha: chance that a candidate which is no faster is called faster, over all `remedies`.
        remedies: how many candidates tune set out to try.
        rng: draws the order within a pair.
        seconds_left: of the budget; a duel ends at the pair that would overrun it, but not before the first look.
        block_s: wanted length of a block.
        settle: steps at the head of a block that do not count.
        looks: pairs after which it is judged.

    Raises:
        SideEndedError: a script failed.
    """
    each = alpha_each(alpha, remedies=remedies, looks=len(looks))
    sides = (baseline, candidate)
    warm = [side.block(_WARM_STEPS) for side in sides]
    # the first steps are slow; the second pilot says how many steps fill a block, on average of both sides: a block
    # filled by the faster side alone would take as many times as long on the other as the gain is large
    pilot = [side.block(_length(0.2 * block_s, seconds)) for side, seconds in zip(sides, warm, strict=True)]
    steps = _length(block_s, sum(pilot) / 2)
    pair_s = sum(pilot) * (steps + settle)
    blocks: list[tuple[float, float]] = []
    gain: Gain | None = None
    out_of_time = False
    for look in looks:
        # half a look would change the number of looks with the data: all of it or none of it
        if gain is not None and (look - len(blocks)) * pair_s > seconds_left():
            out_of_time = True
            break
        while len(blocks) < look:
            blocks.append(_pair(sides, steps, settle, rng))
        gain = judge([math.log(a / b) for a, b in blocks], alpha=each)
        if gain.decided != "open":
            break
    assert gain is not None, "looks is empty"
    a, b = np.array(blocks).T
    return Duel(
        gain=gain,
        baseline_s=float(np.median(a)),
        candidate_s=float(np.median(b)),
        steps=steps,
        blocks=tuple(blocks),
        out_of_time=out_of_time,
    )


def pace(side: Side) -> float:
    """Seconds a step of a side by itself, now: the median of a few blocks, after steps that warm it up."""
    step_s = side.block(_WARM_STEPS)
    steps = _length(BLOCK_S, step_s)
    return statistics.median(side.block(steps) for _ in range(_PACE_BLOCKS))


def needs_second(found: Duel) -> bool:
    """Whether a gain is small enough to be the luck of a process: the core, the memory that it got.

    Two processes of the same script differ by that for as long as they live, which no number of pairs between them
    shows. The gain must then be found again between two fresh processes.
    """
    return found.gain.decided == "faster" and found.gain.low < SURE


def _length(block_s: float, step_s: float) -> int:
    return min(max(math.ceil(block_s / max(step_s, 1e-9)), _FEWEST_STEPS), _MOST_STEPS)


def _pair(sides: tuple[Side, Side], steps: int, settle: int, rng: random.Random) -> tuple[float, float]:
    order = [0, 1]
    rng.shuffle(order)
    seconds = [0.0, 0.0]
    for which in order:
        seconds[which] = sides[which].block(steps, settle=settle)
    return seconds[0], seconds[1]
