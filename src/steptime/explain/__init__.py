"""Where a step's time goes: the Breakdown, the ops, the gaps, utilisation, and the Explanation that holds them.

explanation = explain_session(read_session(folder), calibration)
explanation.ns(group="random", phase="forward")
"""

from __future__ import annotations

from steptime.explain.breakdown import break_down
from steptime.explain.cells import CAUSES, GROUPS, PHASES, RESOURCES, Breakdown, Cell
from steptime.explain.compose import explain_session, explain_trace
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
from steptime.explain.quiet import look_for_others, with_note
from steptime.explain.render import render
from steptime.explain.script import ScriptResult, explain_script

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
    "ScriptResult",
    "StepTime",
    "Utilisation",
    "break_down",
    "explain_script",
    "explain_session",
    "explain_trace",
    "look_for_others",
    "render",
    "with_note",
]
