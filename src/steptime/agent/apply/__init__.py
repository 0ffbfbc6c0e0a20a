"""A Plan applied to an unmodified script, from inside its process, right after it imported torch.

    undo = apply_plan({"kernels": {"dropout": "parallel"}}, report)

Every field of the plan is reported once it is known whether it took effect: `report("compiler.mode", True, "...")`.
A field that found nothing to act on within the first steps is reported as not applicable; a section that fails is
taken back and reported, and the script goes on as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from steptime.agent.apply import collectives, compiler, data, kernels, optimizer, precision, process
from steptime.agent.apply.ground import Ground, Patches, Report, after_steps
from steptime.agent.apply.roots import Roots

__all__ = ["Report", "apply_plan"]

_APPLIERS: dict[str, Callable[[Mapping[str, Any], Ground], None]] = {
    "process": process.apply,
    "precision": precision.apply,
    "kernels": kernels.apply,
    "optimizer": optimizer.apply,
    "data": data.apply,
    "collectives": collectives.apply,
    "compiler": compiler.apply,
}
SETTLED_STEPS = 4
"""Optimizer steps after which a field that has not been reported found nothing to act on; it may be reported later."""

_LATER = {"process.gc"}  # reports by itself, after more steps
_NOTHING = {
    "process": "nothing to set",
    "precision": "no module was called for training",
    "kernels": "no such operation ran on a CPU in training",
    "optimizer": "no optimizer that it concerns",
    "optimizer.zero_grad": "gradients are dropped already",
    "data": "no training DataLoader",
    "collectives": "no DistributedDataParallel",
    "compiler": "no module was called for training",
}


def apply_plan(plan: Mapping[str, Mapping[str, Any]], report: Report) -> Callable[[], None]:
    """Applies each section; gives what takes everything back.

    Args:
        plan: non-default fields by section, as `Plan.agent_json` gives them.
        report: told whether each field took effect, at once or later, from the main thread.
    """
    reported: set[str] = set()

    def noted(name: str, ok: bool, why: str) -> None:
        reported.add(name)
        report(name, ok, why)

    every = Patches()
    roots = Roots(every)
    for section, applier in _APPLIERS.items():
        fields = plan.get(section)
        if not fields:
            continue
        patches = Patches()
        try:
            applier(fields, Ground(report=noted, patches=patches, roots=roots, plan=plan))
        except Exception as error:
            patches.undo()
            for name in fields:
                noted(f"{section}.{name}", False, f"{type(error).__name__}: {error}")
        else:
            every.on_undo(patches.undo)

    def settle() -> None:
        for section, fields in plan.items():
            for name in fields:
                dotted = f"{section}.{name}"
                if dotted not in reported and dotted not in _LATER:
                    noted(
                        dotted, False, f"nothing to act on: {_NOTHING.get(dotted) or _NOTHING.get(section, 'unknown')}"
                    )

    after_steps(every, SETTLED_STEPS, settle)
    return every.undo
