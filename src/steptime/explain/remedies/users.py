"""Remedies of the user's own: a Python file whose `apply(report)` runs in the script's process after the Plan.

    '''Sleeps no longer.'''                 # the docstring is the remedy's why
    NAME = "no_sleep"                       # default: the file's name
    CHANGES_RANDOM_STREAM = False
    CHANGES_NUMERICS = "none"               # or "rounding", "precision"
    SAVES = (0.05, 0.2, 0.5)                # share of the step: P10, P50, P90; default: unknown, 0 .. 0.1 .. 1
    def apply(report): ...                  # report(name, ok, why)

The constants are read from the source; the file is never executed in steptime's own process.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from steptime.errors import SteptimeError
from steptime.explain.remedies.evidence import Evidence
from steptime.explain.remedies.remedy import Proposal, Remedy, proposed

_NUMERICS = ("none", "rounding", "precision")
_DEFAULT_SAVES = (0.0, 0.1, 1.0)


def read_remedy(path: Path) -> tuple[Remedy, tuple[float, float, float]]:
    """The remedy in the file, and the share of the step it is expected to save (P10, P50, P90).

    Raises:
        SteptimeError: it cannot be read or parsed, has no `apply`, or a constant has a wrong value.
    """
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SteptimeError(f"cannot be read ({error})", where=str(path)) from None
    except SyntaxError as error:
        raise SteptimeError(f"not valid Python: {error.msg} (line {error.lineno})", where=str(path)) from None
    if not any(isinstance(node, ast.FunctionDef) and node.name == "apply" for node in tree.body):
        raise SteptimeError("defines no function apply(report)", where=str(path), mend="see docs/tune.md")
    values = _constants(tree, path)
    numerics = values.get("CHANGES_NUMERICS", "none")
    if numerics not in _NUMERICS:
        raise SteptimeError(f"CHANGES_NUMERICS is {numerics!r}; one of {', '.join(_NUMERICS)}", where=str(path))
    saves = values.get("SAVES", _DEFAULT_SAVES)
    if not (isinstance(saves, tuple) and len(saves) == 3 and list(saves) == sorted(saves)):
        raise SteptimeError(f"SAVES is {saves!r}; three growing shares of the step", where=str(path))
    remedy = Remedy(
        name=str(values.get("NAME", path.stem)),
        patch={},
        why=(ast.get_docstring(tree) or f"the user's own remedy in {path.name}").splitlines()[0],
        changes_random_stream=bool(values.get("CHANGES_RANDOM_STREAM", False)),
        changes_numerics=numerics,
        extra=path.resolve(),
    )
    return remedy, saves


def _constants(tree: ast.Module, path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                if node.targets[0].id in ("NAME", "CHANGES_RANDOM_STREAM", "CHANGES_NUMERICS", "SAVES"):
                    raise SteptimeError(f"{node.targets[0].id} is not a literal", where=str(path)) from None
    return found


def propose_own(remedy: Remedy, saves: tuple[float, float, float], evidence: Evidence) -> Proposal:
    """The user's expectation as a prediction; it claims no item, since nobody knows what it touches."""
    low, likely, high = (share * evidence.step_ns for share in saves)
    basis = f"{100 * saves[1]:.0f} % of the step, as its file expects"
    return proposed(remedy, saved_ns=likely, low_ns=low, high_ns=high, basis=basis)
