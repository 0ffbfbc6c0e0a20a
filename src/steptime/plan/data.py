"""How batches reach the training loop; the order of the samples never changes."""

from __future__ import annotations

from steptime.plan.section import Section, option


class DataSection(Section):
    """Settings of the training DataLoader; loaders that only evaluate are left alone."""

    workers: int | None = option(None, ge=0)
    """Worker processes (`num_workers`). Unset: as the script has it."""

    prefetch_factor: int | None = option(None, ge=1)
    """Batches that each worker prepares ahead. Unset: as the script has it."""

    pin_memory: bool | None = option(None)
    """Copy batches into page-locked memory, for faster copies to an accelerator. Unset: as the script has it."""

    persistent_workers: bool | None = option(None)
    """Keep the workers between epochs. Unset: as the script has it."""

    prefetch_thread: int = option(0, ge=0)
    """Batches that a background thread prepares ahead while the step computes; 0: no thread."""
