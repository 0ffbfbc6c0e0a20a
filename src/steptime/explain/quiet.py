"""Whether the machine was left alone: times taken beside others are theirs as much as the script's."""

from __future__ import annotations

import os
from dataclasses import replace

from steptime.explain.explanation import Explanation
from steptime.hardware import others_busy

BUSY_SHARE = 0.1
"""Of the CPUs at hand; a desktop's or a container host's own services stay below."""


def look_for_others() -> str:
    """One line when others keep the CPUs busy now, before the script is started; else empty. Takes half a second."""
    cpus = frozenset(os.sched_getaffinity(0))
    share = others_busy(cpus)
    if share < BUSY_SHARE:
        return ""
    return (
        f"others kept {share:.0%} of the {len(cpus)} CPUs busy just before the script was started: its times are too "
        "long and unsteady; measure on a quiet machine"
    )


def with_note(explanation: Explanation, note: str) -> Explanation:
    """The explanation with a note in front of the others; empty notes add nothing."""
    return replace(explanation, notes=(note, *explanation.notes)) if note else explanation
