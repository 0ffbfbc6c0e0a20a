"""Huge pages for the host's heap: 2 MiB pages instead of 4 KiB ones, so that the TLB reaches the step's tensors.

Zen 3's second-level TLB holds 2,048 entries: 8 MiB of 4 KiB pages, less than the activations of one small model; in a
virtual machine each miss walks two page tables. What it is worth depends on machine and kernel, so it is measured: the
same loop of elementwise ops and products in processes with and without it (measure.py).
"""

from __future__ import annotations

import platform
from pathlib import Path

from steptime.explain.remedies.evidence import Evidence, total
from steptime.explain.remedies.remedy import Family, Micro, Proposal, Remedy, Request, not_tried, proposed

REMEDY = Remedy(
    name="huge_pages",
    patch={"process.allocator": "huge_pages"},
    why="the heap lies in 2 MiB pages, so that tensors are found without walking page tables",
)
_REQUEST: Request = {"kind": "huge_pages"}
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def unavailable(setting: str | None, libc: tuple[str, str]) -> str:
    """Why glibc cannot be told to ask for huge pages here; empty when it can.

    Args:
        setting: content of the kernel's transparent_hugepage/enabled, None where there is none.
        libc: name and version of the C library (`platform.libc_ver`).
    """
    name, version = libc
    if name != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < (2, 35):
        return f"it takes glibc 2.35 or newer, not {name or 'another C library'} {version}".rstrip()
    if setting is None or "[never]" in setting:
        return "this kernel gives no transparent huge pages"
    return "the kernel gives huge pages to everyone already" if "[always]" in setting else ""


def _reason() -> str:
    try:
        setting = _SETTING.read_text()
    except OSError:
        setting = None
    return unavailable(setting, platform.libc_ver())


def requests(evidence: Evidence) -> list[Request]:
    """The loop, where huge pages are to be had and the step computes on the host."""
    return [] if _reason() or evidence.facts.get("device", "cpu") != "cpu" else [_REQUEST]


def propose(evidence: Evidence, micro: Micro) -> list[Proposal]:
    """The measured share of the ops' time; the step's own access pattern may gain twice as much or next to nothing."""
    reason = _reason()
    if reason:
        return [not_tried(REMEDY, reason)]
    if evidence.facts.get("device", "cpu") != "cpu":
        return [not_tried(REMEDY, "the step computes on the accelerator")]
    found = micro.get(_REQUEST)
    if not {"small_s", "huge_s"} <= set(found):
        return [not_tried(REMEDY, "its effect could not be measured")]
    share = 1 - found["huge_s"] / found["small_s"]
    ops = evidence.where(lambda item: item.kind == "op" and not item.serial)
    now = total(ops)
    basis = (
        f"ops on tensors take {now / 1e6:.1f} ms a step (breakdown); "
        f"a loop of such ops takes {100 * share:.0f} % less in huge pages (measured)"
    )
    # a claim on every op would make the others' predictions depend on this small one
    return [proposed(REMEDY, saved_ns=share * now, low_ns=min(0.0, share * now), high_ns=2 * share * now, basis=basis)]


FAMILY = Family(name="huge_pages", remedies=("huge_pages",), requests=requests, propose=propose)
