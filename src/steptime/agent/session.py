"""`session.json`: what the host asks of this process. The keys are described in ARCHITECTURE.md."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How many steps each window lasts at least; see `schedule.py` for how they are stretched."""

    warmup_steps: int = 10
    untraced_steps: int = 20
    traced_steps: int = 5
    stack_steps: int = 20
    untraced_ms: int = 2000
    stacks_ms: int = 1000


@dataclass(frozen=True, kw_only=True)
class Session:
    """One launch, as its processes see it."""

    folder: str
    mode: str
    plan: dict[str, Any] = field(default_factory=dict)
    extra: tuple[str, ...] = ()
    windows: Windows = Windows()
    seed_offset: int = 0
    max_steps: int | None = None
    stop_after_windows: bool = False
    gate: str | None = None
    redirect: str | None = None
    record_losses: bool = True
    record_audit: bool = False


def read_session_file(folder: str) -> Session:
    """The session of a folder. Raises OSError, ValueError, KeyError or TypeError when it is not one of ours."""
    with open(os.path.join(folder, "session.json"), encoding="utf-8") as file:
        raw = json.load(file)
    if raw["version"] != 1:
        raise ValueError(f"session.json has version {raw['version']}; this agent reads 1")
    record = raw.get("record", {})
    return Session(
        folder=folder,
        mode=raw["mode"],
        plan=raw.get("plan") or {},
        extra=tuple(raw.get("extra") or ()),
        windows=Windows(**(raw.get("windows") or {})),
        seed_offset=raw.get("seed_offset", 0),
        max_steps=raw.get("max_steps"),
        stop_after_windows=raw.get("stop_after_windows", False),
        gate=raw.get("gate"),
        redirect=raw.get("redirect"),
        record_losses=record.get("losses", True),
        record_audit=record.get("audit", False),
    )


def session_from_environment() -> Session | None:
    """The session this process was started under, or None when it was not."""
    folder = os.environ.get("STEPTIME_SESSION")
    return read_session_file(folder) if folder else None
