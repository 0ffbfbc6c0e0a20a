"""What a fused block saves, carried over from a measurement of both forms to the block's time in the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steptime.explain.remedies.evidence import Evidence


def saved_by_ratio(
    evidence: Evidence, now_ns: float, measured: Sequence[tuple[Mapping[str, float], float]]
) -> tuple[float, float, float]:
    """Nanoseconds a step saved: likely, low, high.

    The two forms were measured in turn, so the ratio of their times knows nothing of the machine's speed just then;
    their difference, the other road to the same number, widens the interval.

    Args:
        evidence: the step; whether `parallel_dropout` is kept tells which form is in it now.
        now_ns: the blocks' time in the step.
        measured: for each kind of block `torch_s`, `parallel_s` and `fused_s`, seconds a call, and its calls a step.
    """
    form = "parallel_s" if "parallel_dropout" in evidence.kept else "torch_s"
    before = sum(1e9 * found[form] * calls for found, calls in measured)
    after = sum(1e9 * found["fused_s"] * calls for found, calls in measured)
    saved = now_ns * (1 - after / before)
    apart = before - after
    return saved, min(apart, 0.8 * saved, saved - 0.1 * now_ns), max(apart, 1.2 * saved, saved + 0.1 * now_ns)
