"""The one sentence that says what a step's time is."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.explain.explanation import CorrectedCell, RankRow

GROUP_WORDS = {
    "matmul": "matrix products",
    "attention": "attention",
    "convolution": "convolutions",
    "recurrent": "recurrent layers",
    "normalisation": "normalisation",
    "elementwise": "elementwise ops",
    "reduction": "reductions",
    "random": "random numbers",
    "embedding": "embeddings",
    "optimizer": "the optimizer",
    "copy": "copies and layout changes",
    "other": "other ops",
}
CAUSE_WORDS = {
    "python": "Python between ops",
    "data": "waiting for data",
    "sync": "waiting for a value (synchronisation)",
    "garbage_collection": "garbage collection",
    "dispatch": "the host in its own ops (dispatch)",
    "launch": "launching kernels",
    "allocation": "allocating memory",
    "profiler": "the profiler itself",
    "other": "nothing that the trace explains",
}
PHASE_WORDS = {
    "data": "while loading data",
    "forward": "in forward",
    "backward": "in backward",
    "optimizer": "in the optimizer",
    "checkpoint": "in checkpointing",
    "other": "between the phases",
}


def duration(ns: float) -> str:
    """A time with three digits and its unit: "118 ms", "2.35 s", "840 us", "12 ns"."""
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns >= size * 0.9995:
            value = ns / size
            return (
                f"{value:.0f} {unit}"
                if value >= 99.95
                else f"{value:.1f} {unit}"
                if value >= 9.995
                else f"{value:.2f} {unit}"
            )
    return f"{ns:.0f} ns"


def words_of(resource: str, group: str) -> str:
    """What a cell's time is, in words."""
    if resource == "idle":
        return CAUSE_WORDS.get(group, group)
    if resource == "exposed_communication":
        return f"waiting for communication ({group.replace('_', '-')})"
    if resource == "exposed_copy":
        return f"waiting for copies ({group.replace('_', ' ')})"
    return GROUP_WORDS.get(group, group)


def verdict(step_ns: int, cells: Sequence[CorrectedCell], ranks: Sequence[RankRow], *, has_steps: bool = True) -> str:
    """The sentence: step time, what most of it is and in which phase, then what takes another tenth or more."""
    sentence = (
        f"A step takes {duration(step_ns)}" if has_steps else f"The trace marks no step and lasts {duration(step_ns)}"
    )
    if len(ranks) > 1:
        sentence += f" on each of {len(ranks)} ranks"
    if not cells or not step_ns:
        return sentence + "."
    sums: dict[tuple[str, str], int] = {}
    for cell in cells:
        key = (cell.resource, cell.group)
        sums[key] = sums.get(key, 0) + cell.ns
    first, *others = sorted(sums.items(), key=lambda item: -item[1])
    (resource, group), ns = first
    phase, phase_ns = max(
        ((cell.phase, cell.ns) for cell in cells if (cell.resource, cell.group) == (resource, group)),
        key=lambda item: item[1],
    )
    where = (
        PHASE_WORDS[phase] if phase_ns > 0.9 * ns else f"most of it {PHASE_WORDS[phase]}" if phase_ns > ns / 2 else ""
    )
    if group in ("optimizer", "data"):
        where = ""  # the group says it
    part = f"{ns / step_ns:.0%} of it is {words_of(resource, group)}"
    sentence += f"; {part}" + (
        f" {where}" if where and not where.startswith("most") else f" ({where})" if where else ""
    )
    rest = [item for item in others[:2] if item[1] >= 0.1 * step_ns]
    if rest:
        sentence += ", then " + " and ".join(f"{ns / step_ns:.0%} {words_of(*key)}" for key, ns in rest)
    return sentence + "."
