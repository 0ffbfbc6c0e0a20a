"""What the parts of a tuning cost in seconds, so that nothing is begun whose proof no longer fits."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.tune.duel import BLOCK_S, LOOKS
from steptime.tune.settings import TuneSettings

CONFIRMING_PAIRS = 32
"""Fixed beforehand: the published interval is not that of a duel which stopped when it looked good."""
_WARM_S = 2.0
_FEWEST_QUALITY_STEPS = 30


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Costs by the script's own step and start.

    Args:
        settings: the budget and what the quality test is to be.
        start_s: seconds from launch to the first step.
        step_s: seconds a step of the unchanged script.
    """

    settings: TuneSettings
    start_s: float
    step_s: float

    @property
    def pair_s(self) -> float:
        """One block of each side."""
        return 2 * max(BLOCK_S + self.step_s, 3 * self.step_s)

    @property
    def duel_s(self) -> float:
        """Start of a process and the pairs up to the first look."""
        return self.start_s + _WARM_S + LOOKS[0] * self.pair_s

    @property
    def confirm_s(self) -> float:
        """The last duel, both sides in fresh processes."""
        return 2 * self.start_s + _WARM_S + CONFIRMING_PAIRS * self.pair_s

    @property
    def quality_steps(self) -> int:
        """As many steps as a third of the budget allows, from 30 to the setting."""
        settings = self.settings
        room = settings.budget_s / 3 / (2 * settings.seeds + 2) - self.start_s
        return int(min(max(room / (2 * self.step_s), _FEWEST_QUALITY_STEPS), settings.quality_steps))

    def seeds_s(self, seeds: int) -> float:
        """Pairs of runs of the quality test, two runs at a time."""
        return seeds * (1.5 * self.start_s + 2 * self.quality_steps * self.step_s)

    @property
    def reserve_s(self) -> float:
        """The proof of the final plan: its confirmation, and its seeds with one more for what goes wrong."""
        return self.confirm_s + self.seeds_s(self.settings.seeds + 1)
