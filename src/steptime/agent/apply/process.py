"""Section `process`: threads, cores, denormals, oneDNN, garbage collection; and whether the allocator took hold."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from steptime.agent.apply.ground import Ground

WARM_STEPS = 10
"""Optimizer steps after which `gc = "freeze"` takes what is alive as permanent."""

_PRELOADED = {"jemalloc": "jemalloc", "tcmalloc": "tcmalloc"}


def apply(section: Mapping[str, Any], ground: Ground) -> None:
    """Cores and denormals first: threads that start later inherit both from the main thread."""
    for name, setter in _SETTERS.items():
        if name in section:
            setter(section[name], ground)


def _affinity(value: Any, ground: Ground) -> None:
    if value == "none":
        return
    allowed = os.sched_getaffinity(0)
    if value == "compact":
        cores = _compact(sorted(allowed), int(os.environ.get("LOCAL_RANK", 0)), ground)
    else:
        cores = set(value) & allowed
    if not cores:
        ground.report("process.affinity", False, f"none of the CPUs {value} may be used by this process")
        return
    os.sched_setaffinity(0, cores)
    ground.patches.on_undo(lambda: os.sched_setaffinity(0, allowed))
    ground.report("process.affinity", True, f"CPUs {', '.join(str(one) for one in sorted(cores))}")


def _compact(allowed: list[int], local_rank: int, ground: Ground) -> set[int]:
    """As many neighbouring CPUs as this rank has threads, one of each physical core before its siblings."""
    threads = int(ground.plan.get("process", {}).get("threads") or torch.get_num_threads())
    first_siblings: dict[tuple[str, str], int] = {}
    for cpu in allowed:
        first_siblings.setdefault(_core(cpu), cpu)
    ordered = list(first_siblings.values())
    ordered += [cpu for cpu in allowed if cpu not in ordered]
    start = (local_rank * threads) % len(ordered)
    return set((ordered + ordered)[start : start + min(threads, len(ordered))])


def _core(cpu: int) -> tuple[str, str]:
    folder = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return (folder / "physical_package_id").read_text().strip(), (folder / "core_id").read_text().strip()
    except OSError:
        return "", str(cpu)


def _flush_denormal(value: bool, ground: Ground) -> None:
    if not value:
        return
    done = torch.set_flush_denormal(True)

    def back() -> None:
        torch.set_flush_denormal(False)

    ground.patches.on_undo(back)
    why = "in this thread and those it starts" if done else "this processor cannot"
    ground.report("process.flush_denormal", done, why)


def _threads(value: int, ground: Ground) -> None:
    before = torch.get_num_threads()
    original = torch.set_num_threads
    original(value)
    told = False

    def set_num_threads(count: int) -> None:
        # loader threads and workers set their own to 1, through the same function: those are not the script's choice
        nonlocal told
        if not _on_training_thread():
            original(count)
        elif not told:
            told = True
            ground.report("process.threads", True, f"{value} threads; the script's own choice of {count} is overruled")

    ground.patches.replace(torch, "set_num_threads", set_num_threads)
    ground.patches.on_undo(lambda: original(before))
    ground.report("process.threads", torch.get_num_threads() == value, f"{value} threads, were {before}")


def _on_training_thread() -> bool:
    import multiprocessing
    import threading

    return threading.current_thread() is threading.main_thread() and multiprocessing.parent_process() is None


def _interop_threads(value: int, ground: Ground) -> None:
    try:
        torch.set_num_interop_threads(value)
    except RuntimeError:
        ground.report("process.interop_threads", False, "parallel work had started already")
        return
    ground.report("process.interop_threads", True, f"{value} threads")


def _mkldnn(value: bool, ground: Ground) -> None:
    if value:
        return
    if not torch.backends.mkldnn.is_available():
        ground.report("process.mkldnn", False, "this torch has no oneDNN")
        return
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    ground.patches.on_undo(lambda: torch._C._set_mkldnn_enabled(before))
    ground.report("process.mkldnn", True, "oneDNN is off")


def _gc(value: str, ground: Ground) -> None:
    if value != "freeze":
        return

    def freeze() -> None:
        gc.collect()
        gc.freeze()
        ground.report("process.gc", True, f"{gc.get_freeze_count():,} objects frozen after {WARM_STEPS} steps")

    ground.after_steps(WARM_STEPS, freeze)
    ground.patches.on_undo(gc.unfreeze)


def _allocator(value: str, ground: Ground) -> None:
    """The environment chose the allocator before this process began; here is only looked whether it did."""
    if value == "default":
        return
    if value == "large_pools":
        ok = "MALLOC_TRIM_THRESHOLD_" in os.environ
        ground.report(
            "process.allocator", ok, "glibc keeps freed memory" if ok else "MALLOC_TRIM_THRESHOLD_ is not set"
        )
        return
    if value == "huge_pages":
        ok = "glibc.malloc.hugetlb=1" in os.environ.get("GLIBC_TUNABLES", "")
        why = "glibc asks for huge pages" if ok else "GLIBC_TUNABLES does not hold glibc.malloc.hugetlb=1"
        ground.report("process.allocator", ok, why)
        return
    try:
        mapped = Path("/proc/self/maps").read_text("utf-8", "replace")
    except OSError:
        mapped = ""
    ok = _PRELOADED[value] in mapped
    ground.report("process.allocator", ok, f"{value} is {'' if ok else 'not '}loaded")


_SETTERS: dict[str, Callable[[Any, Ground], None]] = {
    "affinity": _affinity,
    "flush_denormal": _flush_denormal,
    "threads": _threads,
    "interop_threads": _interop_threads,
    "mkldnn": _mkldnn,
    "gc": _gc,
    "allocator": _allocator,
}
