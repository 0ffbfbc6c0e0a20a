"""The cheap gates before the equivalence test: what a remedy must leave exactly as it was, or nearly so.

They compare one run of the unchanged script with one of the tuned script under the same seeds. Each gives its
objections as sentences; none means passed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from steptime.explain.remedies.remedy import Numerics
from steptime.tune.statistics import within
from steptime.tune.trials import Trained

FIRST_LOSS_TOLERANCE: dict[Numerics, float] = {"none": 1e-5, "rounding": 1e-5, "precision": 2e-2}
"""Relative difference allowed between the first losses. float32 sums in another order differ by some 1e-7 times the
square root of their length; bfloat16 has 8 bits (facts/quant.md 6.1)."""

_IGNORED = frozenset({"event", "time_ns", "steps", "training_steps", "epochs"})
"""Of an audit: how far the run came, which differs with its length."""
_PREFIXES = frozenset({"batches", "samples_by_epoch", "first"})
"""Lists of which the shorter run's are compared."""


def audit_objections(baseline: Trained, tuned: Trained, *, stream: bool = False) -> list[str]:
    """What the tuned run trains differently: optimizer settings, data and its order, dropout, clipping, backwards.

    `stream`: the tuned run draws other random numbers by design. What the script draws after the first batch (the order
    of the second epoch, augmentations) then differs too, so of later batches only shapes and types are compared.
    """
    if not baseline.audit or not tuned.audit:
        return []
    a, b = (_without_later_contents(run.audit) if stream else run.audit for run in (baseline, tuned))
    return list(_differences(a, b, ""))


def _without_later_contents(audit: Mapping[str, Any]) -> dict[str, Any]:
    loaders = []
    for loader in audit.get("loaders") or ():
        first, later = loader.get("batches", [])[:1], loader.get("batches", [])[1:]
        shapes = [{name: value for name, value in batch.items() if name != "blake2b"} for batch in later]
        loaders.append({**loader, "batches": [*first, *shapes]})
    return {**audit, "loaders": loaders}


def _differences(a: Any, b: Any, where: str) -> Iterator[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        # two runs of different length have different counts and digests of the same sequence
        shorter = {"count", "digest", "changes", "calls"} if a.get("count", a.get("calls")) != b.get(
            "count", b.get("calls")
        ) else set()  # fmt: skip
        # digests and the contents of batches say that something differs, their neighbours what
        names = sorted((set(a) | set(b)) - _IGNORED - shorter, key=lambda name: (_tells_little(name), str(name)))
        for name in names:
            yield from _differences(a.get(name), b.get(name), f"{where}.{name}" if where else str(name))
    elif isinstance(a, Sequence) and isinstance(b, Sequence) and not isinstance(a, str):
        if where.rsplit(".", 1)[-1] in _PREFIXES:
            a, b = a[: len(b)], b[: len(a)]
        if len(a) != len(b):
            yield f"{where}: {len(a)} became {len(b)}"
            return
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from _differences(x, y, f"{where}[{index}]")
    elif a != b and not (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=1e-9)):
        yield f"{where}: {_short(a)} became {_short(b)}"


def _tells_little(name: object) -> bool:
    return "digest" in str(name) or name == "batches"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def first_loss_objections(baseline: Trained, tuned: Trained, numerics: Numerics) -> list[str]:
    """Losses of the first step that do not agree: the same weights, batch and masks must give the same loss."""
    found = []
    tolerance = FIRST_LOSS_TOLERANCE[numerics]
    for site, series in baseline.losses.items():
        other = tuned.losses.get(site)
        if other is None or not len(other):
            found.append(f"{_site(site)}: no loss was computed")
            continue
        if len(series) and np.isfinite(series[0]) and not within(float(other[0]), float(series[0]), relative=tolerance):
            found.append(
                f"{_site(site)}: the first step's loss {series[0]:.6g} became {other[0]:.6g} under the same seed "
                f"(allowed: {tolerance:g} relative)"
            )
    return found


def finite_objections(baseline: Trained, tuned: Trained) -> list[str]:
    """Losses that became NaN or infinite, and a loss scale that collapsed (more than a fifth of the steps skipped)."""
    found = []
    for site, series in tuned.losses.items():
        there = baseline.losses.get(site)
        if there is None:
            continue
        steps = min(len(series), len(there))
        broken = np.isfinite(there[:steps]) & ~np.isfinite(series[:steps])
        if broken.any():
            found.append(
                f"{_site(site)}: the loss is {series[int(broken.argmax())]} at step {int(broken.argmax()) + 1}"
            )
    steps = max((len(series) for series in tuned.losses.values()), default=0)
    if tuned.skipped_steps - baseline.skipped_steps > 0.2 * steps:
        found.append(f"{tuned.skipped_steps} of {steps} optimizer steps were skipped: the loss scale collapsed")
    return found


def reproducible(first: Trained, again: Trained) -> bool:
    """Whether two runs under the same seeds begin alike: only then can seeds be paired."""
    compared = 0
    for site, series in first.losses.items():
        # `again` is a short run: a generator's loss may come after its end, or after the first optimizer step
        other = again.losses.get(site, series[:0])
        both = [(a, b) for a, b in zip(series, other, strict=False) if np.isfinite(a) and np.isfinite(b)]
        if both:
            compared += 1
            if not within(float(both[0][1]), float(both[0][0]), relative=1e-5):
                return False
    return compared > 0


GRADIENT_TOLERANCE: dict[Numerics, float] = {"none": 1e-3, "rounding": 1e-2, "precision": 0.15}
"""Relative difference allowed between the norms of a parameter's first gradients. Backward sums cancel, so they round
worse than a loss does."""
_MORE_ZEROS = 0.05


def gradient_objections(baseline: Trained, tuned: Trained, numerics: Numerics, *, stream: bool) -> list[str]:
    """First gradients (gradients.py) that vanished or differ; norms only where the random stream is the same."""
    a, b = _gradients(baseline), _gradients(tuned)
    if a is None or b is None or len(a["norms"]) != len(b["norms"]):
        return []
    found = []
    zeros = float(np.mean(b["zeros"]) - np.mean(a["zeros"])) if len(a["zeros"]) else 0.0
    if zeros > (4 * _MORE_ZEROS if stream else _MORE_ZEROS):
        found.append(f"{100 * zeros:.0f} % of the first step's gradients became zero: they underflow")
    norms, others = np.array(a["norms"]), np.array(b["norms"])
    # parameters whose gradient is noise to begin with say nothing
    large = norms > 1e-3 * float(np.linalg.norm(norms))
    if not stream and large.any():
        apart = float(np.max(np.abs(others[large] / norms[large] - 1)))
        if not apart <= GRADIENT_TOLERANCE[numerics]:
            found.append(
                f"a parameter's first gradient differs by {100 * apart:.1f} % in norm "
                f"(allowed: {100 * GRADIENT_TOLERANCE[numerics]:g} %)"
            )
    return found


def _gradients(run: Trained) -> dict[str, list[float]] | None:
    told = [event for event in run.applied if event["name"] == "gradients"]
    return json.loads(str(told[-1]["why"])) if told else None


def mask_objections(tuned: Trained) -> list[str]:
    """What masks.py reported about the dropout as the tuned script sees it."""
    return [str(event["why"]) for event in tuned.applied if event["name"] == "masks" and not event["ok"]]


def _site(site: str) -> str:
    path, _, line = site.rpartition(":")
    return f"{path.rsplit('/', 1)[-1]}:{line}"
