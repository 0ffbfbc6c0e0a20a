"""How the training process is set up: threads, cores, allocator, floating-point environment, garbage collection."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from steptime.plan.section import Section, option


class ProcessSection(Section):
    """Settings of the process as a whole. Allocator and OpenMP binding are environment variables of its start."""

    threads: int | None = option(None, ge=1)
    """Threads of one CPU operation (`torch.set_num_threads`, `OMP_NUM_THREADS`). Unset: as the script has it."""

    interop_threads: int | None = option(None, ge=1)
    """Threads that run independent operations (`torch.set_num_interop_threads`). Unset: as the script has it."""

    affinity: Literal["none", "compact"] | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = (
        option("none")
    )
    """Cores that the process may use: `compact` takes neighbouring physical cores, one a thread, apart for each local
    rank; a list names logical CPUs."""

    allocator: Literal["default", "jemalloc", "tcmalloc", "large_pools", "huge_pages"] = option("default")
    """Memory allocator of the host: a preloaded library, or `large_pools`: glibc told to keep freed memory instead of
    giving it back to the kernel at each step; `huge_pages`: that, in transparent huge pages (glibc >= 2.35)."""

    flush_denormal: bool = option(False)
    """Treat denormal numbers as zero (`torch.set_flush_denormal`), in threads that start later too."""

    mkldnn: bool = option(True)
    """Let oneDNN run CPU operations. Off helps recurrent nets at small batches, where its dispatch costs more than
    the arithmetic."""

    gc: Literal["default", "freeze"] = option("default")
    """`freeze` collects once after 10 optimizer steps and then leaves everything alive at that time out of later
    collections (`gc.freeze`)."""
