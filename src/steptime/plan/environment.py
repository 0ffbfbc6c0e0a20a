"""The environment variables of a plan: what must be set before the process starts."""

from __future__ import annotations

import ctypes.util
import os
from collections.abc import Mapping
from pathlib import Path

from steptime.errors import SteptimeError
from steptime.plan.plan import Plan

_LIBRARIES = {
    "jemalloc": ("jemalloc", ("libjemalloc.so.2", "libjemalloc.so"), "install libjemalloc2 (Debian) or jemalloc"),
    "tcmalloc": (
        "tcmalloc_minimal",
        ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so", "libtcmalloc.so"),
        "install libtcmalloc-minimal4 (Debian) or gperftools",
    ),
}
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")

# mallopt(3): above the mmap threshold glibc maps and unmaps each block, and the kernel zeroes its pages anew at every
# step. glibc bounds the threshold at HEAP_MAX_SIZE / 2 = 32 MiB on 64 bits (larger values are ignored), so blocks above
# that are still mapped each time; the trim threshold keeps the rest.
_LARGE_POOLS = {
    "MALLOC_ARENA_MAX": "4",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}


_HUGE = ("glibc.malloc.hugetlb", "1")
"""glibc asks for transparent huge pages with madvise (2.35 and newer; older ones ignore it)."""


def process_environment(plan: Plan, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables to add to the environment `base` (default: this process's) before the script starts.

    Raises:
        SteptimeError: the allocator's library is not installed.
    """
    base = os.environ if base is None else base
    process = plan.process
    added: dict[str, str] = {}
    if process.threads is not None:
        added |= {"OMP_NUM_THREADS": str(process.threads), "MKL_NUM_THREADS": str(process.threads)}
    if process.affinity == "compact":
        added |= {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    elif isinstance(process.affinity, tuple):
        added["GOMP_CPU_AFFINITY"] = " ".join(str(cpu) for cpu in process.affinity)
    if process.allocator == "large_pools":
        added |= _LARGE_POOLS
    elif process.allocator == "huge_pages":
        added |= _LARGE_POOLS
        tunables = [one for one in base.get("GLIBC_TUNABLES", "").split(":") if one and not one.startswith(_HUGE[0])]
        added["GLIBC_TUNABLES"] = ":".join([*tunables, "=".join(_HUGE)])
    elif process.allocator != "default":
        library = find_allocator(process.allocator)
        if library is None:
            raise SteptimeError(
                f"the {process.allocator} library is not on this machine",
                where="process.allocator",
                mend=_LIBRARIES[process.allocator][2],
            )
        added["LD_PRELOAD"] = f"{library}:{base['LD_PRELOAD']}" if base.get("LD_PRELOAD") else library
    return added


def find_allocator(name: str) -> str | None:
    """Path, or name that the loader resolves, of an allocator's library; None when it is not here."""
    short, files, _ = _LIBRARIES[name]
    for folder in _FOLDERS:
        for file in files:
            if (Path(folder) / file).exists():
                return str(Path(folder) / file)
    return ctypes.util.find_library(short)
