"""When huge pages are to be had: the kernel's switch and glibc's version decide."""

from __future__ import annotations

import pytest

from steptime.explain.remedies.huge_pages import unavailable
from steptime.plan import Plan, process_environment

MADVISE, ALWAYS, NEVER = "always [madvise] never", "[always] madvise never", "always madvise [never]"


@pytest.mark.parametrize(
    ("setting", "libc", "reason"),
    [
        (MADVISE, ("glibc", "2.36"), ""),
        (MADVISE, ("glibc", "2.34"), "2.35 or newer"),
        (MADVISE, ("", ""), "another C library"),
        (ALWAYS, ("glibc", "2.36"), "already"),
        (NEVER, ("glibc", "2.36"), "no transparent huge pages"),
        (None, ("glibc", "2.36"), "no transparent huge pages"),
    ],
)
def test_kernel_and_library_decide(setting: str | None, libc: tuple[str, str], reason: str) -> None:
    found = unavailable(setting, libc)
    assert (found == "") == (reason == "")
    assert reason in found


def test_the_users_own_tunables_stay() -> None:
    plan = Plan().with_patch({"process.allocator": "huge_pages"})
    base = {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.malloc.hugetlb=0"}
    assert process_environment(plan, base)["GLIBC_TUNABLES"] == "glibc.malloc.check=1:glibc.malloc.hugetlb=1"
