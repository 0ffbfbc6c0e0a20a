"""The process: threads, cores, allocator, denormals, oneDNN's dispatch, garbage collection, memory format."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from steptime.explain.remedies.evidence import Evidence, total
from steptime.explain.remedies.remedy import Family, Micro, Proposal, Remedy, Request, not_tried, proposed

_FORK_NS = 5_000.0
"""Starting and joining an OpenMP team: 2-10 us."""
_SLOW_RATIO = 12.0
"""An elementwise op so many times slower, by its bytes, than the step's usual one: denormals cost 38-53x
(facts/quant.md), and half of the elements denormal is still this much."""
_PAGE_NS = 500.0
"""A minor page fault with the zeroing of its 4 KiB page, where it could not be measured: 0.25-1 us, under nested
virtualisation 2."""
_FAULTS: Request = {"kind": "page_fault"}

DENORMAL = Remedy(
    name="flush_denormal",
    patch={"process.flush_denormal": True},
    why="denormal numbers, which cost some 50 times a normal one, are treated as zero",
    changes_numerics="rounding",
)
MKLDNN = Remedy(
    name="mkldnn_off",
    patch={"process.mkldnn": False},
    why="recurrent layers skip oneDNN's dispatch",
    changes_numerics="rounding",
)
ALLOCATOR = Remedy(
    name="allocator_large_pools",
    patch={"process.allocator": "large_pools"},
    why="glibc keeps freed memory instead of returning and zeroing its pages each step",
)
COLLECTION = Remedy(
    name="gc_freeze",
    patch={"process.gc": "freeze"},
    why="the objects of the model are left out of later garbage collections",
)
AFFINITY = Remedy(
    name="affinity_compact",
    patch={"process.affinity": "compact"},
    why="threads stay on neighbouring cores of one memory node",
)
CHANNELS = Remedy(
    name="channels_last",
    patch={"kernels.memory_format": "channels_last"},
    why="convolutions run on NHWC tensors without reordering them",
    changes_numerics="rounding",
)


def propose(evidence: Evidence, micro: Micro) -> list[Proposal]:
    """One proposal a setting, most of them put aside with a reason."""
    return [
        _threads(evidence),
        _affinity(evidence),
        _denormal(evidence),
        _mkldnn(evidence),
        _channels(evidence),
        _allocator(evidence, micro),
        _collection(evidence),
    ]


def _threads(evidence: Evidence) -> Proposal:
    wanted = 1 if evidence.threads == evidence.cores else evidence.cores
    remedy = Remedy(
        name="threads",
        patch={"process.threads": wanted},
        why=f"{wanted} thread{'s' if wanted > 1 else ''} instead of {evidence.threads}",
        changes_numerics="rounding",
    )
    if evidence.facts.get("device", "cpu") != "cpu":
        return not_tried(remedy, "the step computes on the accelerator")
    if evidence.threads == wanted:
        return not_tried(remedy, "one thread on one core is all there is")
    wide = evidence.where(lambda i: not i.serial and i.phase != "data")
    now, calls = total(wide), sum(item.calls for _, item in wide)
    if evidence.threads > evidence.cores:
        saved, low, high = 0.2 * now, 0.0, 0.7 * now
        basis = f"{evidence.threads} threads share {evidence.cores} cores; parallel ops take {now / 1e6:.1f} ms a step"
    elif wanted > evidence.threads:
        # Amdahl's law on the parallel ops, at 80 % efficiency
        saved = now * (1 - evidence.threads / (wanted * 0.8))
        low, high = 0.4 * saved - _FORK_NS * calls, now * (1 - evidence.threads / wanted)
        basis = f"parallel ops take {now / 1e6:.1f} ms a step on {evidence.threads} of {wanted} cores (Amdahl)"
    else:
        saved = _FORK_NS * calls - 0.6 * now * (evidence.threads - 1) / 1
        low, high = saved - 0.4 * now, 2 * _FORK_NS * calls - 0.2 * now
        basis = f"one thread saves {calls:.0f} team starts a step and loses the speed-up of {now / 1e6:.1f} ms of ops"
    return proposed(remedy, saved_ns=saved, low_ns=low, high_ns=high, basis=basis)


def _affinity(evidence: Evidence) -> Proposal:
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1
    if nodes == 1:
        return not_tried(AFFINITY, "this machine has one memory node")
    now = total(evidence.where(lambda i: i.kind == "op"))
    basis = f"{nodes} memory nodes; ops take {now / 1e6:.1f} ms a step"
    return proposed(AFFINITY, saved_ns=0.03 * now, low_ns=-0.02 * now, high_ns=0.3 * now, basis=basis)


def _denormal(evidence: Evidence) -> Proposal:
    elementwise = evidence.where(
        lambda i: i.kind == "op" and i.group == "elementwise" and i.elements >= 100_000 and i.ns > 0 and bool(i.bytes)
    )
    # against the step's other ops, not against the memory's rate: a busy machine slows down all of them
    per_byte = [item.ns / (item.bytes or 1) for _, item in elementwise]
    usual = median(per_byte) if len(per_byte) >= 3 else 0.0
    slow = [one for one, cost in zip(elementwise, per_byte, strict=True) if usual and cost > _SLOW_RATIO * usual]
    now = total(slow)
    if not now:
        return not_tried(DENORMAL, "no elementwise op is slow enough to suspect denormal numbers")
    basis = (
        f"elementwise ops of {now / 1e6:.1f} ms a step take over {_SLOW_RATIO:.0f} times the step's usual time a byte"
    )
    claims = tuple((index, 0.5) for index, _ in slow)
    return proposed(DENORMAL, saved_ns=0.5 * now, low_ns=0.0, high_ns=0.97 * now, basis=basis, claims=claims)


def _mkldnn(evidence: Evidence) -> Proposal:
    recurrent = evidence.where(lambda i: i.kind == "op" and (i.group == "recurrent" or "mkldnn_rnn" in i.name))
    now = total(recurrent)
    if not now:
        return not_tried(MKLDNN, "the step has no recurrent layer")
    basis = f"recurrent layers take {now / 1e6:.1f} ms a step; without oneDNN 1-3.6 times faster at small batches"
    claims = tuple((index, 0.3) for index, _ in recurrent)
    return proposed(MKLDNN, saved_ns=0.3 * now, low_ns=-1.0 * now, high_ns=0.72 * now, basis=basis, claims=claims)


def _channels(evidence: Evidence) -> Proposal:
    convolutions = evidence.where(
        lambda i: i.kind == "op" and i.group == "convolution" and any(len(shape) == 4 for shape in i.shapes)
    )
    now = total(convolutions)
    if not now:
        return not_tried(CHANNELS, "the step has no 2-D convolution")
    basis = f"convolutions take {now / 1e6:.1f} ms a step; NHWC spares their reordering"
    claims = tuple((index, 0.2) for index, _ in convolutions)
    return proposed(CHANNELS, saved_ns=0.2 * now, low_ns=-0.3 * now, high_ns=0.5 * now, basis=basis, claims=claims)


def _allocator(evidence: Evidence, micro: Micro) -> Proposal:
    faults = (evidence.facts.get("process") or {}).get("minor_faults_per_step")
    if faults is None:
        return not_tried(ALLOCATOR, "page faults of the step were not counted")
    found = micro.get(_FAULTS)
    each = 1e9 * found["page_s"] if "page_s" in found else _PAGE_NS
    now = each * float(faults)
    basis = f"{faults:.0f} minor page faults a step (counted), {each:.0f} ns each" + (" (measured)" if found else "")
    # threads fault side by side: two of them take as little as half of the sum; fresh pages also miss the caches
    return proposed(ALLOCATOR, saved_ns=0.7 * now, low_ns=0.3 * now, high_ns=1.2 * now, basis=basis)


def _collection(evidence: Evidence) -> Proposal:
    collecting = evidence.where(lambda i: i.kind == "idle" and i.name == "garbage_collection")
    now = total(collecting)
    if not now:
        return not_tried(COLLECTION, "no garbage collection was seen in the step")
    basis = f"garbage collection takes {now / 1e6:.2f} ms a step (breakdown)"
    claims = tuple((index, 0.8) for index, _ in collecting)
    return proposed(COLLECTION, saved_ns=0.8 * now, low_ns=0.3 * now, high_ns=now, basis=basis, claims=claims)


def requests(evidence: Evidence) -> list[Request]:
    """What a page fault costs, where the step's were counted."""
    return [_FAULTS] if (evidence.facts.get("process") or {}).get("minor_faults_per_step") else []


FAMILY = Family(
    name="process",
    remedies=(
        "threads",
        "flush_denormal",
        "mkldnn_off",
        "allocator_large_pools",
        "gc_freeze",
        "affinity_compact",
        "channels_last",
    ),
    requests=requests,
    propose=propose,
)
