"""The loss: the unscaled scalars on which `backward` is called, averaged per optimizer step, one series a call site.

A value on an accelerator is never waited for: it is copied to the host asynchronously and read a batch of steps
later. A value on the CPU is there already.
"""

from __future__ import annotations

import math
import time
from typing import Any

from steptime.agent.hooks import caller_outside_torch
from steptime.agent.journal import Journal

BATCH_STEPS = 50
BATCH_NS = 1_000_000_000  # slow steps are written at least once a second, so a kill loses little

Losses = dict[tuple[str, int], list[Any]]
"""The values of one step by the place, file and line, from which backward was called."""

_SOURCE = "_steptime_source"


class LossLog:
    """Collects the losses of a step and writes them in batches as `losses` events.

    An event is `{"first_step": n, "steps": k, "values": {site: [k means, NaN where the site was not reached]}}`.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._open: Losses = {}
        self._steps: list[Losses] = []
        self._copying: tuple[int, list[Losses]] | None = None
        self._first = 0
        self._written_ns = time.perf_counter_ns()
        self._scaled = False
        self._on_device = False

    def scaled(self, scaled: Any, source: Any) -> None:
        """A GradScaler made `scaled` from `source`: the loss is the source."""
        self._scaled = True
        setattr(scaled, _SOURCE, source.detach())

    def backward_begins(self, tensors: Any) -> None:
        """Notes the scalars that this backward call starts from."""
        for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
            loss = getattr(tensor, _SOURCE, tensor) if self._scaled else tensor
            if not hasattr(loss, "numel") or loss.numel() != 1:
                continue
            if hasattr(loss, "to_local"):
                loss = loss.detach().to_local()
            if loss.is_cpu:
                value = loss.item()
            else:
                self._on_device = True
                value = loss.detach().reshape(()).to("cpu", non_blocking=True)
            # the place, not the code object: hashing one of those hashes its bytecode
            place = caller_outside_torch()
            values = self._open.get(place)
            if values is None:
                values = self._open[place] = []
            values.append(value)

    def step_closed(self, now_ns: int) -> None:
        """The training step is over: its losses belong together."""
        self._steps.append(self._open)
        self._open = {}
        if len(self._steps) >= BATCH_STEPS or now_ns - self._written_ns > BATCH_NS:
            self._written_ns = now_ns
            batch = (self._first, self._steps)
            self._first += len(self._steps)
            self._steps = []
            if self._on_device:
                batch, self._copying = self._copying, batch
            if batch is not None:
                self._write(*batch)

    def flush(self) -> None:
        """Writes everything that is there; waits for an accelerator."""
        if self._on_device:
            import torch

            torch.accelerator.synchronize()
        if self._copying is not None:
            self._write(*self._copying)
            self._copying = None
        if self._steps:
            self._write(self._first, self._steps)
            self._first += len(self._steps)
            self._steps = []

    def _write(self, first: int, steps: list[Losses]) -> None:
        sites = sorted({site for step in steps for site in step})
        values = {
            f"{site[0]}:{site[1]}": [
                math.fsum(map(float, step[site])) / len(step[site]) if site in step else math.nan for step in steps
            ]
            for site in sites
        }
        if sites:
            self._journal.event("losses", first_step=first, steps=len(steps), values=values)
