"""The untraced step's split: the traced one with the cost of tracing taken out.

Model: traced = (untraced + c * events) * s, with one cost c an event and a slowness s of the machine while it traced.
c = (traced step - untraced median) / events per step, at least 0 and at most what the profiler can cost: what is left
of the inflation above that is s, and falls on all cells alike. A cell's corrected time is max(0, traced - c * its
events), scaled to sum to the untraced median. Its interval covers the spread of the median (bootstrap) and both
extreme allocations of the inflation: proportional to the events, and proportional to the traced time.
Docs: docs/definitions.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]

RESAMPLES = 1000
MOST_PER_EVENT_NS = 6_000.0
"""What an event costs at most where the agent could not measure it: 1.2-3 us on a quiet server core, 3.1-5.8 us on a
shared one (torch.add, linear with backward, record_function; with shapes less without the profiler). A busy neighbour
made it look like 18 us, which took away the loader and the optimizer whole."""
_COLDER = 2.0
"""Between the ops of a step the profiler's buffers are out of the caches; in the agent's loop of ops they are not."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Corrected:
    """Per cell and step: `ns` sums to `median_ns` exactly, `low_ns <= ns <= high_ns`; `per_event_ns` is c."""

    ns: Int64s
    low_ns: Int64s
    high_ns: Int64s
    median_ns: int
    step_low_ns: int
    step_high_ns: int
    per_event_ns: float


def most_per_event_ns(measured_ns: float | None) -> float:
    """The bound on c from the agent's measurement at the start of the traced window, ns; without one the constant."""
    return min(_COLDER * measured_ns, 2 * MOST_PER_EVENT_NS) if measured_ns else MOST_PER_EVENT_NS


def correct(traced_ns: Floats, events: Floats, untraced_ns: Int64s, *, most_ns: float = MOST_PER_EVENT_NS) -> Corrected:
    """Splits the untraced median step.

    Args:
        traced_ns: time per traced step of each cell.
        events: recorded events per traced step that each cell paid for.
        untraced_ns: durations of single untraced steps; at least one.
        most_ns: what one event costs at most (`most_per_event_ns`).

    Raises:
        ValueError: no untraced step, or nothing traced.
    """
    if not len(untraced_ns) or traced_ns.sum() <= 0:
        raise ValueError("a correction needs untraced steps and traced time")
    median = round(float(np.median(untraced_ns)))
    medians = bootstrap_medians(untraced_ns)
    point, per_event = _by_events(traced_ns, events, np.array([median], np.float64), most_ns)
    spread = np.percentile(medians, [2.5, 97.5])
    candidates = np.concatenate(
        [point, _by_events(traced_ns, events, spread, most_ns)[0], _by_time(traced_ns, np.append(spread, median))]
    )
    ns = round_to_sum(point[0], median)
    return Corrected(
        ns=ns,
        low_ns=np.minimum(np.floor(candidates.min(axis=0)).astype(np.int64), ns),
        high_ns=np.maximum(np.ceil(candidates.max(axis=0)).astype(np.int64), ns),
        median_ns=median,
        step_low_ns=min(median, int(np.floor(spread[0]))),
        step_high_ns=max(median, int(np.ceil(spread[1]))),
        per_event_ns=float(per_event[0]),
    )


def bootstrap_medians(untraced_ns: Int64s) -> Floats:
    """Medians of resamples with replacement; the seed is fixed so that one record gives one explanation."""
    generator = np.random.default_rng(0)
    picks = generator.integers(0, len(untraced_ns), (RESAMPLES, len(untraced_ns)))
    return np.median(untraced_ns[picks], axis=1)


def round_to_sum(values: Floats, total: int) -> Int64s:
    """Integers that sum to `total`, each within 1 of its value (largest remainder); values are >= 0 and sum to it."""
    whole = np.floor(values).astype(np.int64)
    missing = int(total - whole.sum())
    order = np.argsort(-(values - whole), kind="stable")
    if missing >= 0:
        whole[order[:missing]] += 1
    else:  # floating-point dust: take back from the largest
        whole[np.argmax(whole)] += missing
    return whole


def _by_events(traced_ns: Floats, events: Floats, untraced_ns: Floats, most_ns: float) -> tuple[Floats, Floats]:
    """(targets, cells), and c of each target."""
    inflation = np.maximum(traced_ns.sum() - untraced_ns, 0.0)
    per_event = inflation / events.sum() if events.sum() > 0 else np.zeros_like(inflation)
    per_event = np.minimum(per_event, most_ns)
    left = np.maximum(traced_ns - per_event[:, None] * events, 0.0)
    total = left.sum(axis=1, keepdims=True)
    # tracing cannot have cost more than everything: where it seems so, only the proportions of time are left
    shares = np.where(total > 0, left / np.where(total > 0, total, 1.0), traced_ns / traced_ns.sum())
    return shares * untraced_ns[:, None], per_event


def _by_time(traced_ns: Floats, untraced_ns: Floats) -> Floats:
    return traced_ns / traced_ns.sum() * untraced_ns[:, None]
