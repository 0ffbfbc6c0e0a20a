"""What this process is: its rank, its framework, and whether it can be one that trains."""

from __future__ import annotations

import os
import sys

LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
LAUNCHER_SCRIPTS = ("torchrun", "accelerate", "deepspeed", "pip", "pip3", "py-spy", "steptime")
HELPER_CODE = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
HELPER_MODULES = ("torch._inductor.compile_worker", "pip")
RANK_VARIABLES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
)
FRAMEWORKS = ("deepspeed", "lightning", "pytorch_lightning", "transformers", "accelerate")


def helper_kind(arguments: list[str]) -> str | None:
    """Why a Python process with this `sys.orig_argv` cannot be the one that trains; None when it may be.

    Workers of a DataLoader and children of `multiprocessing` are not told apart here: what trains is decided by the
    first optimizer step, and these take none.
    """
    for index, argument in enumerate(arguments[1:], start=1):
        following = arguments[index + 1] if index + 1 < len(arguments) else ""
        if argument == "-m":
            if following in LAUNCHER_MODULES:
                return f"launcher {following}"
            return f"helper {following}" if following.split(".__main__")[0].startswith(HELPER_MODULES) else None
        if argument == "-c":
            return next((f"helper {name}" for name in HELPER_CODE if name in following), None)
        if argument in ("-W", "-X"):
            continue
        if not argument.startswith("-"):
            if arguments[index - 1] in ("-W", "-X"):
                continue
            name = os.path.basename(argument)
            if "compile_worker" in argument:
                return "helper torch inductor's compile worker"
            return f"launcher {name}" if name in LAUNCHER_SCRIPTS else None
    return None


def rank_of_this_process() -> dict[str, int]:
    """`rank`, `local_rank`, `world_size`, `local_world_size`: torch.distributed's when it is up, else the launcher's.

    A launcher's variables count only when they are whole: a lone SLURM_PROCID stands in every shell of an allocation.
    """
    found = {"rank": 0, "local_rank": 0, "world_size": 1, "local_world_size": 1}
    for rank, local, size, local_size in RANK_VARIABLES:
        values = [os.environ.get(name, "") for name in (rank, size)]
        if all(value.isdigit() for value in values):
            found["rank"], found["world_size"] = int(values[0]), int(values[1])
            text = os.environ.get(local, "")
            found["local_rank"] = int(text) if text.isdigit() else found["rank"]
            text = os.environ.get(local_size, "")
            found["local_world_size"] = int(text) if text.isdigit() else found["world_size"]
            break
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        found["rank"], found["world_size"] = distributed.get_rank(), distributed.get_world_size()
        found["local_world_size"] = min(max(found["local_world_size"], 1), found["world_size"])
        if "LOCAL_WORLD_SIZE" not in os.environ:
            found["local_world_size"] = found["world_size"]
    return found


def framework_in_use() -> str:
    """The outermost training framework that the process has imported, or `torch` for a plain loop."""
    trainers = {
        "lightning": "lightning.pytorch.trainer.trainer",
        "pytorch_lightning": "pytorch_lightning.trainer.trainer",
        "transformers": "transformers.trainer",
    }
    for name in FRAMEWORKS:
        if trainers.get(name, name) in sys.modules:
            return name
    return "torch"


def minor_faults() -> int:
    """Page faults of all threads since the process began that needed no disk: memory touched for the first time."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
