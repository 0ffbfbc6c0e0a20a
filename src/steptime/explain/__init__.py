"""Where a step's time goes: the Breakdown, the ops, the gaps, utilisation, and the Explanation that holds them."""

from __future__ import annotations

from steptime.explain.cells import CAUSES, GROUPS, PHASES, RESOURCES, Breakdown, Cell
from steptime.explain.explanation import (
    CorrectedCell,
    Explanation,
    Facts,
    Gap,
    OpRow,
    RankRow,
    StepTime,
    Utilisation,
)

__all__ = [
    "CAUSES",
    "GROUPS",
    "PHASES",
    "RESOURCES",
    "Breakdown",
    "Cell",
    "CorrectedCell",
    "Explanation",
    "Facts",
    "Gap",
    "OpRow",
    "RankRow",
    "StepTime",
    "Utilisation",
]
