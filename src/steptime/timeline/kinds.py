"""What an event of a Kineto trace is: by category first, communication by metadata, then by name."""

from __future__ import annotations

import re

from steptime.timeline.timeline import EventKind

BY_CATEGORY = {
    "cpu_op": EventKind.CPU_OP,
    "Operator": EventKind.CPU_OP,
    "hpu_op": EventKind.CPU_OP,
    "user_annotation": EventKind.ANNOTATION,
    "python_function": EventKind.PYTHON,
    "cuda_runtime": EventKind.RUNTIME,
    "cuda_driver": EventKind.RUNTIME,
    "xpu_runtime": EventKind.RUNTIME,
    "xpu_driver": EventKind.RUNTIME,
    "mtia_runtime": EventKind.RUNTIME,
    "privateuse1_runtime": EventKind.RUNTIME,
    "privateuse1_driver": EventKind.RUNTIME,
    "Runtime": EventKind.RUNTIME,
    "kernel": EventKind.KERNEL,
    "Kernel": EventKind.KERNEL,
    "gpu_memcpy": EventKind.MEMCPY,
    "Memcpy": EventKind.MEMCPY,
    "gpu_memset": EventKind.MEMSET,
    "Memset": EventKind.MEMSET,
    "collective_comm": EventKind.COMMUNICATION,
    "cuda_sync": EventKind.SYNC,
    "xpu_sync": EventKind.SYNC,
    "overhead": EventKind.OVERHEAD,
    "gpu_user_annotation": EventKind.DEVICE_ANNOTATION,
}
"""Categories of 2021 (capitalised) to today; source: libkineto's activity types. Others are left out."""

DEVICE_CATEGORIES = frozenset(
    category
    for category, kind in BY_CATEGORY.items()
    if kind in (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET, EventKind.COMMUNICATION, EventKind.SYNC)
)

ANNOTATION_PREFIXES = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)#", "steptime.")
"""Annotations that the schema of 2021 wrote as operators."""

_COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|nvshmem|multimem_|symm_mem|one_shot_all|two_shot_all|cross_device_reduce|allreduce_fusion"
    r"|deep_ep|mscclpp|flux::",
    re.IGNORECASE,
)


def is_communication(kernel: str) -> bool:
    """Whether a device kernel of this name moves data between ranks."""
    return _COMMUNICATION.search(kernel) is not None
