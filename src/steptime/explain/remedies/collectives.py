"""Gradient communication of DistributedDataParallel, from the communication that the step waits for."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.explain.remedies.evidence import Evidence, total
from steptime.explain.remedies.remedy import Family, Micro, Proposal, Remedy, no_requests, not_tried, proposed


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What share of the exposed communication a remedy saves: likely, low, high."""

    remedy: Remedy
    saved: float
    low: float
    high: float
    basis: str


_SHARES = (
    _Share(
        remedy=Remedy(
            name="ddp_compress_bf16",
            patch={"collectives.compression": "bf16"},
            why="gradients travel as bfloat16: half the bytes",
            changes_numerics="precision",
        ),
        saved=0.35,
        low=-0.2,
        high=0.55,
        basis="half the bytes, less two casts",
    ),
    _Share(
        remedy=Remedy(
            name="ddp_compress_fp16",
            patch={"collectives.compression": "fp16"},
            why="gradients travel as float16: half the bytes",
            changes_numerics="precision",
        ),
        saved=0.35,
        low=-0.2,
        high=0.55,
        basis="half the bytes, less two casts",
    ),
    _Share(
        remedy=Remedy(
            name="ddp_bucket_view",
            patch={"collectives.gradient_as_bucket_view": True},
            why="gradients are views of the buckets: no copy each way",
        ),
        saved=0.08,
        low=0.0,
        high=0.25,
        basis="the copies in and out of the buckets go",
    ),
    _Share(
        remedy=Remedy(
            name="ddp_small_buckets",
            patch={"collectives.bucket_cap_mb": 5.0},
            why="smaller buckets start to travel earlier in the backward pass",
        ),
        saved=0.1,
        low=-0.2,
        high=0.4,
        basis="communication starts earlier, with more latency",
    ),
    _Share(
        remedy=Remedy(
            name="ddp_static_graph",
            patch={"collectives.static_graph": True},
            why="DDP no longer searches for unused parameters",
        ),
        saved=0.02,
        low=0.0,
        high=0.1,
        basis="the search for unused parameters goes",
    ),
)


def propose(evidence: Evidence, micro: Micro) -> list[Proposal]:
    """One proposal a setting of DDP."""
    if int(evidence.facts.get("world_size") or 1) < 2:
        return [not_tried(share.remedy, "one process: nothing is communicated") for share in _SHARES]
    exposed = evidence.where(
        lambda i: i.kind == "exposed_communication" or (i.kind == "op" and i.name.startswith(("c10d::", "gloo:")))
    )
    now = total(exposed)
    if not now:
        return [not_tried(share.remedy, "no communication is exposed") for share in _SHARES]
    return [
        proposed(
            share.remedy,
            saved_ns=share.saved * now,
            low_ns=share.low * now,
            high_ns=share.high * now,
            basis=f"{now / 1e6:.1f} ms of communication a step are exposed (breakdown); {share.basis}",
            claims=tuple((index, share.saved) for index, _ in exposed),
        )
        for share in _SHARES
    ]


FAMILY = Family(
    name="collectives",
    remedies=("ddp_compress_bf16", "ddp_compress_fp16", "ddp_bucket_view", "ddp_small_buckets", "ddp_static_graph"),
    requests=no_requests,
    propose=propose,
)
