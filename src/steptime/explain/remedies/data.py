"""The loader on the critical path: a thread or worker processes that prepare batches while the step computes."""

from __future__ import annotations

from typing import Any

from steptime.explain.remedies.evidence import Evidence, most, total
from steptime.explain.remedies.remedy import Family, Micro, Proposal, Remedy, no_requests, not_tried, proposed

THREAD = Remedy(
    name="prefetch_thread",
    patch={"data.prefetch_thread": 2},
    why="a background thread prepares the next batches while the step computes",
)
WORKERS = Remedy(
    name="loader_workers",
    patch={"data.workers": 2, "data.persistent_workers": True},
    why="worker processes prepare the next batches while the step computes",
)
PINNING = Remedy(
    name="pin_memory",
    patch={"data.pin_memory": True},
    why="batches lie in page-locked memory, so copies to the accelerator overlap",
)
_TRANSPORT_NS = 400_000.0
"""A batch from a worker: shared-memory files, pickled handles and a queue; about 0.2-0.6 ms whatever its size."""


def propose(evidence: Evidence, micro: Micro) -> list[Proposal]:
    """Thread, workers, pinning."""
    return [_thread(evidence), _workers(evidence), _pinning(evidence)]


def _exposed(evidence: Evidence) -> tuple[float, float, tuple[tuple[int, float], ...]]:
    """Time that the loader holds the step up: likely, at most; and the items it stands in."""
    items = evidence.where(lambda item: item.phase == "data")
    return total(items), most(items), tuple((index, 1.0) for index, _ in items)


def hidden_ns(evidence: Evidence, work_ns: float) -> tuple[float, float, float]:
    """How much of `work_ns` of another thread's work the rest of the step can hide: (likely, low, high) nanoseconds.

    The rest of the step keeps `threads` cores busy in its parallel ops and one in all else (random numbers, small ops,
    Python); the work fits into what `cores` leave over, and what does not fit is shared by all cores.
    """
    rest_ns = evidence.step_ns - work_ns
    parallel = sum(item.ns for item in evidence.items if item.phase != "data" and not item.serial)
    wide = min(evidence.threads, evidence.cores)
    # a parallel op keeps its threads busy about 80 % of the time: they start one after the other and wait for the last
    busy = rest_ns + parallel * (wide - 1) * 0.8
    after = max(rest_ns, (busy + work_ns) / evidence.cores)
    likely = max(evidence.step_ns - after, 0.0)
    if evidence.cores == 1:
        return 0.0, -0.1 * work_ns, 0.1 * work_ns
    return 0.9 * likely, 0.5 * likely, min(work_ns, 1.15 * likely)


def _loader(evidence: Evidence) -> dict[str, Any]:
    return dict(evidence.facts.get("loader") or {})


def _own_workers(evidence: Evidence) -> int:
    return int(_loader(evidence).get("num_workers") or _loader(evidence).get("workers") or 0)


def _thread(evidence: Evidence) -> Proposal:
    now, at_most, claims = _exposed(evidence)
    if not at_most:
        return not_tried(THREAD, "no time is spent waiting for data")
    if _own_workers(evidence):
        return not_tried(THREAD, "the script's loader has workers already")
    saved, low, high = hidden_ns(evidence, now)
    high = max(high, hidden_ns(evidence, at_most)[0])
    basis = (
        f"the loader holds the step up for {now / 1e6:.1f} ms (breakdown); the other ops leave "
        f"{evidence.cores} cores room for {saved / 1e6:.1f} ms of it"
    )
    claims = tuple((index, saved / now if now else 0.0) for index, _ in claims)
    return proposed(THREAD, saved_ns=saved, low_ns=low, high_ns=high, basis=basis, claims=claims)


def _workers(evidence: Evidence) -> Proposal:
    now, at_most, claims = _exposed(evidence)
    if not at_most:
        return not_tried(WORKERS, "no time is spent waiting for data")
    if _own_workers(evidence):
        return not_tried(WORKERS, "the script's loader has workers already")
    if _loader(evidence).get("iterable"):
        return not_tried(WORKERS, "each worker would repeat an IterableDataset's samples")
    hidden, low, high = hidden_ns(evidence, now)
    high = max(high, hidden_ns(evidence, at_most)[0])
    saved = min(hidden, now - _TRANSPORT_NS)
    basis = (
        f"the loader holds the step up for {now / 1e6:.1f} ms (breakdown); fetching a batch from a worker costs "
        f"about {_TRANSPORT_NS / 1e6:.1f} ms"
    )
    share = max(saved / now, 0.0) if now else 0.0
    return proposed(
        WORKERS,
        saved_ns=saved,
        low_ns=min(low, saved) - _TRANSPORT_NS,
        high_ns=max(high - 0.5 * _TRANSPORT_NS, saved),
        basis=basis,
        claims=tuple((index, share) for index, _ in claims),
    )


def _pinning(evidence: Evidence) -> Proposal:
    if evidence.facts.get("device", "cpu") == "cpu":
        return not_tried(PINNING, "there is no accelerator to copy to")
    copies = evidence.where(lambda item: item.kind == "exposed_copy")
    now = total(copies)
    if not now:
        return not_tried(PINNING, "no copy to the accelerator is exposed")
    return proposed(
        PINNING,
        saved_ns=0.5 * now,
        low_ns=0.0,
        high_ns=now,
        basis=f"copies hold the step up for {now / 1e6:.2f} ms (breakdown)",
        claims=tuple((index, 0.5) for index, _ in copies),
    )


FAMILY = Family(
    name="data", remedies=("prefetch_thread", "loader_workers", "pin_memory"), requests=no_requests, propose=propose
)
