"""Findings: the shares of the step that are worth a sentence, each with its evidence and the remedies that are known.

A share that dominates and for which no remedy is known is a finding too: it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steptime.explain.explanation import CorrectedCell, Explanation

LEAST_SHARE = 0.10
"""A group of the step's time is a finding from this share on."""

_SENTENCES: Mapping[str, str] = {
    "random": "random numbers",
    "matmul": "matrix products",
    "attention": "attention",
    "convolution": "convolutions",
    "recurrent": "recurrent layers",
    "normalisation": "normalisation",
    "elementwise": "elementwise ops",
    "reduction": "reductions",
    "embedding": "embeddings",
    "optimizer": "the optimizer",
    "copy": "copies and layout changes",
    "other": "other ops",
}
_IDLE: Mapping[str, str] = {
    "python": "Python between ops",
    "data": "waiting for data",
    "sync": "waiting for the device",
    "garbage_collection": "garbage collection",
    "launch": "launching kernels",
    "dependency": "waiting for another stream",
    "profiler": "the profiler",
    "other": "idle for reasons not seen",
}
_REMEDIES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("compute", "random"): ("parallel_dropout", "compile"),
    ("compute", "matmul"): ("fused_feed_forward", "autocast_bf16", "matmul_precision", "threads"),
    ("compute", "attention"): ("fused_attention", "autocast_bf16"),
    ("compute", "convolution"): ("channels_last", "autocast_bf16"),
    ("compute", "recurrent"): ("mkldnn_off",),
    ("compute", "normalisation"): ("compile",),
    ("compute", "elementwise"): (
        "compile",
        "fused_feed_forward",
        "fused_attention",
        "parallel_dropout",
        "fast_gelu",
        "flush_denormal",
    ),
    ("compute", "reduction"): ("compile",),
    ("compute", "copy"): ("compile", "channels_last"),
    ("compute", "optimizer"): ("fused_optimizer", "foreach_optimizer", "zero_grad_set_to_none"),
    ("idle", "data"): ("prefetch_thread", "loader_workers"),
    ("idle", "python"): ("compile",),
    ("idle", "launch"): ("compile",),
    ("idle", "garbage_collection"): ("gc_freeze",),
}
_COMMUNICATION = ("ddp_compress_bf16", "ddp_compress_fp16", "ddp_bucket_view", "ddp_small_buckets", "ddp_static_graph")
_COPY = ("pin_memory", "prefetch_thread")


def find(explanation: Explanation) -> tuple[Mapping[str, Any], ...]:
    """The findings of an explanation, the largest first.

    Each is `{"title", "detail", "resource", "group", "ns", "low_ns", "high_ns", "share", "cells", "ops", "sources",
    "remedies"}`; `group` is missing where the whole resource is meant. `remedies` are names that `steptime tune` knows;
    whether one pays is decided by its prediction and its trial.
    """
    found = []
    for (resource, group), cells in _grouped(explanation.corrected).items():
        ns = sum(cell.ns for cell in cells)
        share = ns / explanation.step.median_ns if explanation.step.median_ns else 0.0
        if share >= LEAST_SHARE:
            found.append(_finding(explanation, resource, group, cells, share))
    return tuple(sorted(found, key=lambda finding: -finding["ns"]))


def _grouped(cells: tuple[CorrectedCell, ...]) -> dict[tuple[str, str], list[CorrectedCell]]:
    """By resource and group; the collectives and the copies each count together, and all data work is one thing."""
    groups: dict[tuple[str, str], list[CorrectedCell]] = {}
    for cell in cells:
        if cell.phase == "data":
            key = ("idle", "data")
        elif cell.resource.startswith("exposed_"):
            key = (cell.resource, "")
        else:
            key = (cell.resource, cell.group)
        groups.setdefault(key, []).append(cell)
    return groups


def _finding(
    explanation: Explanation, resource: str, group: str, cells: list[CorrectedCell], share: float
) -> dict[str, Any]:
    remedies = _known(resource, group)
    what = _what(resource, group)
    spots = {(cell.resource, cell.group, cell.phase) for cell in cells}
    ops = [op for op in explanation.ops if (op.resource, op.group, op.phase) in spots]
    gaps = [gap for gap in explanation.gaps if ("idle", gap.cause, gap.phase) in spots]
    largest = max(ops, key=lambda op: op.self_ns, default=None)
    detail = ""
    if largest is not None:
        detail = f"the largest op is {largest.name}, {largest.calls_per_step:.0f} calls a step"
    if not remedies:
        detail = f"{detail}; " if detail else ""
        detail += "no remedy is known for it"
    sources = [op.source for op in ops if op.source] + [gap.source for gap in gaps if gap.source]
    finding: dict[str, Any] = {
        "title": f"{100 * share:.0f} % of the step is {what}",
        "detail": detail,
        "resource": resource,
        "ns": sum(cell.ns for cell in cells),
        "low_ns": sum(cell.low_ns for cell in cells),
        "high_ns": sum(cell.high_ns for cell in cells),
        "share": share,
        "cells": [{"resource": r, "group": g, "phase": p} for r, g, p in sorted(spots)],
        "ops": list(dict.fromkeys(op.name for op in sorted(ops, key=lambda op: -op.self_ns)))[:5],
        "sources": list(dict.fromkeys(sources))[:3],
        "remedies": list(remedies),
    }
    return finding | ({"group": group} if group else {})


def _known(resource: str, group: str) -> tuple[str, ...]:
    if resource == "exposed_communication":
        return _COMMUNICATION
    if resource == "exposed_copy":
        return _COPY
    return _REMEDIES.get((resource, group), ())


def _what(resource: str, group: str) -> str:
    if resource == "exposed_communication":
        return "communication that nothing hides"
    if resource == "exposed_copy":
        return "copies that nothing hides"
    return (_IDLE if resource == "idle" else _SENTENCES).get(group, group)
