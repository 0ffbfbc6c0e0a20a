"""A run noted in the ledger beside a command that must not notice: no delay, no error of ours in its way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

_INTERRUPTED = (130, -2)
"""Exit codes of a process that Ctrl-C ended."""
MOST_VALUES = 1_000_000
"""Entries of a series that are kept; of a longer one the last."""

Series = Mapping[tuple[int, int], Mapping[str, Sequence[float] | npt.NDArray[np.generic]]]
"""(rank, pid) -> name -> values."""


@final
class RunNote:
    """One run: begun in a thread while the command starts (provenance takes a second), ended when it has ended.

    A ledger that cannot be written is told once, in one line; nothing is raised.
    """

    def __init__(
        self,
        kind: str,
        command: Sequence[str],
        cwd: Path,
        *,
        warn: Callable[[str], None],
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        self._fields: dict[str, Any] = {"kind": kind, "plan": None if plan is None else dict(plan)}
        self._command, self._cwd, self._warn = list(command), cwd, warn
        self._problem: Exception | None = None
        self.run_id: str | None = None
        self._beginning = threading.Thread(target=self._begin, daemon=True)
        self._beginning.start()

    def end(
        self,
        *,
        exit_code: int,
        step_s: tuple[float, float, float] | None = None,
        explanation: Mapping[str, Any] | None = None,
        series: Series | None = None,
    ) -> str | None:
        """Writes how it ended; the run's id, None when it could not be noted.

        Args:
            exit_code: the command's.
            step_s: median step time and its interval, seconds.
            explanation: its JSON.
            series: columns of its processes.
        """
        from steptime.ledger import Ledger

        self._beginning.join()
        if self.run_id is None:
            self._warn(f"this run is not in the ledger: {self._problem}")
            return None
        point, low, high = step_s or (None, None, None)
        status = "finished" if exit_code == 0 else "interrupted" if exit_code in _INTERRUPTED else "failed"
        try:
            with Ledger.open() as ledger:
                ledger.finish_run(
                    self.run_id, status=status, exit_code=exit_code, step_s=point, step_low_s=low, step_high_s=high
                )
                if explanation is not None:
                    ledger.write_explanation(self.run_id, explanation)
                for (rank, pid), columns in (series or {}).items():
                    last = {name: np.asarray(values)[-MOST_VALUES:] for name, values in columns.items()}
                    ledger.write_columns(self.run_id, rank=rank, pid=pid, series=last)
        except Exception as problem:  # the run is over and its exit code stands, whatever the disk does
            self._warn(f"the end of run {self.run_id} is not in the ledger: {problem}")
        return self.run_id

    def _begin(self) -> None:
        try:
            from steptime.hardware import fingerprint, look_at_machine
            from steptime.ledger import Ledger, RunRow, collect

            facts = collect(self._command, self._cwd)
            facts["hardware"] = fingerprint(look_at_machine())
            with Ledger.open() as ledger:
                self.run_id = ledger.add_run(RunRow(**self._fields, **facts))
        except Exception as problem:  # told at the end, when the script's own output is complete
            self._problem = problem
