"""What became of a plan in the processes that it was applied in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from steptime.plan.plan import Plan


def unmet(plan: Plan, applied: Iterable[Iterable[Mapping[str, Any]]], *, own: Collection[str] = ()) -> list[str]:
    """One line for each field of `plan`, and each remedy of the user's own, that did not take effect, with the reason.

    Args:
        plan: what was asked for.
        applied: for each rank its `applied` events in order, `{"name", "ok", "why"}`; the last one of a name counts.
        own: names under which the user's own remedies may have reported; they need not report success.
    """
    fields = plan.difference()
    if not fields and not own:
        return []
    ranks = [{event["name"]: event for event in events} for events in applied]
    if not ranks:
        return ["the plan was not applied: no process of the command trained with the agent in it"]
    lines = []
    for name in (*fields, *own):
        told = [rank[name] for rank in ranks if name in rank]
        failed = next((event for event in told if not event["ok"]), None)
        if failed is not None:
            lines.append(f"{name} did not take effect: {failed['why']}")
        elif not told and name not in own:
            lines.append(f"{name} did not take effect: the script ended before it could")
    return lines
