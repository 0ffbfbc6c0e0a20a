from __future__ import annotations

import subprocess
import sys

import pytest

from steptime.errors import SteptimeError
from steptime.plan import Plan, environment, process_environment, unmet


def test_the_default_plan_sets_nothing():
    assert process_environment(Plan(), {}) == {}


def test_threads_and_cores_are_what_openmp_reads():
    plan = Plan().with_patch({"process.threads": 3, "process.affinity": [0, 2]})
    added = process_environment(plan, {})
    assert added == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "GOMP_CPU_AFFINITY": "0 2"}


def test_a_missing_allocator_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr(environment, "_FOLDERS", ())
    monkeypatch.setattr(environment.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(SteptimeError, match=r"process.allocator: the jemalloc library .* install libjemalloc2"):
        process_environment(Plan().with_patch({"process.allocator": "jemalloc"}), {})


def test_an_allocator_goes_before_what_is_preloaded_already(monkeypatch):
    monkeypatch.setattr(environment, "find_allocator", lambda name: "/lib/libjemalloc.so.2")
    plan = Plan().with_patch({"process.allocator": "jemalloc"})
    assert process_environment(plan, {"LD_PRELOAD": "/lib/other.so"}) == {
        "LD_PRELOAD": "/lib/libjemalloc.so.2:/lib/other.so"
    }


@pytest.mark.spawned
def test_large_pools_keep_freed_memory_in_the_process():
    """glibc's own account: blocks below 32 MiB come from the heap, and its top is not given back."""
    code = (
        "import ctypes\n"
        "libc = ctypes.CDLL(None); libc.malloc.restype = ctypes.c_void_p; libc.free.argtypes = [ctypes.c_void_p]\n"
        "libc.sbrk.restype = ctypes.c_void_p; libc.sbrk.argtypes = [ctypes.c_ssize_t]\n"
        "block = libc.malloc(20 << 20); inside = block < libc.sbrk(0); libc.free(block)\n"
        "again = libc.malloc(20 << 20); print(inside and block == again)\n"
    )
    added = process_environment(Plan().with_patch({"process.allocator": "large_pools"}), {})
    done = subprocess.run([sys.executable, "-c", code], env=added, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "True", done.stderr


def test_what_did_not_take_effect_is_named_with_its_reason():
    plan = Plan().with_patch({"compiler.mode": "default", "process.threads": 1, "kernels.dropout": "parallel"})
    event = {"name": "compiler.mode", "ok": True, "why": "compiled"}
    broken = {"name": "compiler.mode", "ok": False, "why": "did not compile"}
    threads = {"name": "process.threads", "ok": True, "why": "1 thread"}
    assert unmet(plan, [[event, broken, threads]]) == [
        "compiler.mode did not take effect: did not compile",
        "kernels.dropout did not take effect: the script ended before it could",
    ]
    assert len(unmet(plan, [])) == 1
    assert unmet(Plan(), []) == []


def test_huge_pages_leave_the_users_own_tunables() -> None:
    plan = Plan().with_patch({"process.allocator": "huge_pages"})
    base = {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.malloc.hugetlb=0"}
    assert process_environment(plan, base)["GLIBC_TUNABLES"] == "glibc.malloc.check=1:glibc.malloc.hugetlb=1"
