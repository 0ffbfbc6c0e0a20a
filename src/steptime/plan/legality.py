"""Which plans cannot hold, and why: rules over a plan's non-default fields and facts of the script and machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ScriptFacts:
    """What is known of a script and its machine; None where it is not known, and then no rule objects."""

    device: str | None = None
    """torch device type that the parameters live on: cpu, cuda, xpu, ..."""
    ddp: bool | None = None
    """Whether the model is wrapped in DistributedDataParallel."""
    cores: int | None = None
    """Logical CPUs that the process may use."""
    local_ranks: int = 1
    """Training processes that share these cores."""
    float_parameters: bool | None = None
    """Whether all trained parameters are real floating-point tensors."""
    can_compile: str | None = None
    """Empty when torch.compile can work here, else the reason why not."""
    iterable_dataset: bool | None = None
    """Whether the training data set is an IterableDataset."""
    workers: int | None = None
    """num_workers of the training loader as the script has it."""


Rule = Callable[[Mapping[str, Any], ScriptFacts], str | None]


def objections(fields: Mapping[str, Any], facts: ScriptFacts) -> list[str]:
    """One line for each rule that `fields` (dotted name -> non-default value) break."""
    return [found for rule in _RULES if (found := rule(fields, facts))]


def _fused(fields: Mapping[str, Any], facts: ScriptFacts) -> str | None:
    if fields.get("optimizer.implementation") in ("fused", "foreach") and facts.float_parameters is False:
        return "optimizer.implementation: the parameters are not all floating point; leave it at script"
    return None


def _needs_ddp(fields: Mapping[str, Any], facts: ScriptFacts) -> str | None:
    used = [name for name in fields if name.startswith("collectives.")]
    if used and facts.ddp is False:
        return f"{used[0]}: only with DistributedDataParallel, which the script does not use"
    return None


def _pinning(fields: Mapping[str, Any], facts: ScriptFacts) -> str | None:
    if fields.get("data.pin_memory") and facts.device == "cpu":
        return "data.pin_memory: needs an accelerator; this script trains on the CPU"
    return None


def _cuda_graphs(fields: Mapping[str, Any], facts: ScriptFacts) -> str | None:
    if fields.get("compiler.mode") == "reduce-overhead" and facts.device not in (None, "cuda"):
        return f"compiler.mode: reduce-overhead uses CUDA graphs; this script trains on {facts.device}"
    return None


def _compiler(fields: Mapping[str, Any], facts: ScriptFacts) -> str | None:
    if "compiler.mode" in fields and facts.can_compile:
        return f"compiler.mode: {facts.can_compile}"
    return None


def _scope(fields: Mapping[str, Any], facts: ScriptFacts) -> str | None:
    if "compiler.scope" in fields and "compiler.mode" not in fields:
        return "compiler.scope: says nothing while compiler.mode is none"
    return None


def _cpu_kernels(fields: Mapping[str, Any], facts: ScriptFacts) -> str | None:
    ours = ("dropout", "attention", "gelu", "feed_forward")
    used = [name for name in (f"kernels.{one}" for one in ours) if name in fields]
    if used and facts.device not in (None, "cpu"):
        return f"{used[0]}: replaces a CPU operation; this script trains on {facts.device}"
    return None


def _threads(fields: Mapping[str, Any], facts: ScriptFacts) -> str | None:
    threads = fields.get("process.threads")
    if threads is not None and facts.cores is not None and threads * facts.local_ranks > facts.cores:
        return f"process.threads: {threads} x {facts.local_ranks} ranks exceed the {facts.cores} cores of this process"
    return None


def _affinity(fields: Mapping[str, Any], facts: ScriptFacts) -> str | None:
    cpus = fields.get("process.affinity")
    if isinstance(cpus, (list, tuple)):
        if not cpus:
            return "process.affinity: an empty list leaves no core to run on"
        if facts.cores is not None and max(cpus) >= facts.cores:
            return f"process.affinity: there is no CPU {max(cpus)}; the highest is {facts.cores - 1}"
    return None


def _workers(fields: Mapping[str, Any], facts: ScriptFacts) -> str | None:
    if fields.get("data.workers") and facts.iterable_dataset:
        return "data.workers: each worker would repeat an IterableDataset's samples; use data.prefetch_thread"
    return None


def _worker_settings(fields: Mapping[str, Any], facts: ScriptFacts) -> str | None:
    workers = fields.get("data.workers", facts.workers)
    used = [name for name in ("data.prefetch_factor", "data.persistent_workers") if fields.get(name)]
    if used and workers == 0:
        return f"{used[0]}: needs data.workers >= 1"
    return None


_RULES: tuple[Rule, ...] = (
    _fused,
    _needs_ddp,
    _pinning,
    _cuda_graphs,
    _compiler,
    _scope,
    _cpu_kernels,
    _threads,
    _affinity,
    _workers,
    _worker_settings,
)
