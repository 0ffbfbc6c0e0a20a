"""What a launch asks of the agent: `session.json`, written by the host. The keys are described in ARCHITECTURE.md."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from steptime.errors import SteptimeError


@dataclass(frozen=True, kw_only=True)
class WindowSpec:
    """Least lengths of the windows of mode `explain`, in training steps."""

    warmup_steps: int = 10
    untraced_steps: int = 20
    """Stretched until `untraced_ms` have been measured."""
    traced_steps: int = 5
    """A settling step comes before them."""
    stack_steps: int = 20
    """Stretched until `stacks_ms` have been sampled."""
    untraced_ms: int = 2000
    stacks_ms: int = 1000


@dataclass(frozen=True, kw_only=True)
class SessionSpec:
    """One launch. See ARCHITECTURE.md, 'The session folder'."""

    mode: Literal["explain", "trial", "run"] = "explain"
    plan: Mapping[str, Any] = field(default_factory=dict)
    """`Plan.agent_json()`: the non-default values, section by section."""
    extra: tuple[Path, ...] = ()
    """Python files of the user's own remedies, each with `apply(report)`."""
    windows: WindowSpec = WindowSpec()
    seed_offset: int = 0
    max_steps: int | None = None
    stop_after_windows: bool = False
    """End the process once every window has been measured (explaining a long script)."""
    gate: Path | None = None
    redirect: Path | None = None
    losses: bool = True
    audit: bool = False

    def to_json(self) -> dict[str, Any]:
        """The object that `session.json` holds."""
        return {
            "version": 1,
            "mode": self.mode,
            "plan": dict(self.plan),
            "extra": [str(path.resolve()) for path in self.extra],
            "windows": asdict(self.windows),
            "seed_offset": self.seed_offset,
            "max_steps": self.max_steps,
            "stop_after_windows": self.stop_after_windows,
            "gate": str(self.gate) if self.gate else None,
            "redirect": str(self.redirect) if self.redirect else None,
            "record": {"losses": self.losses, "audit": self.audit},
        }


def write_session(spec: SessionSpec, folder: Path) -> Path:
    """Makes the session folder (readable by its owner only) and `session.json` in it.

    Raises:
        SteptimeError: when the folder cannot be made or written, or has been used by another launch.
    """
    path = folder / "session.json"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists():
            raise SteptimeError("a session has already run in this folder", where=str(folder), mend="name a fresh one")
        temporary = folder / f"session.json.{os.getpid()}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(spec.to_json(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        (folder / "ranks").mkdir(exist_ok=True)
    except OSError as problem:
        raise SteptimeError(
            f"the session folder cannot be written: {problem.strerror}",
            where=str(folder),
            mend="name a writable folder with free space",
        ) from problem
    return path
