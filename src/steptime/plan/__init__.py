"""The Plan: how a training is run, in one TOML dialect for unmodified scripts and the engine."""

from __future__ import annotations

from steptime.plan.by_hand import unified_diff, what_remains
from steptime.plan.environment import process_environment
from steptime.plan.legality import ScriptFacts
from steptime.plan.outcome import unmet
from steptime.plan.plan import VERSION, FieldDoc, Plan, PlanPatch

__all__ = [
    "VERSION",
    "FieldDoc",
    "Plan",
    "PlanPatch",
    "ScriptFacts",
    "process_environment",
    "unified_diff",
    "unmet",
    "what_remains",
]
