"""The compiled half of gelu: pointers in, nothing checked. `gelu.op` checks."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from steptime.kernels.build import compile_library

_FOLDER = Path(__file__).parent
_NATIVE = _FOLDER.parent / "native"
_POINTER = ctypes.c_void_p


@functools.cache
def library() -> ctypes.CDLL:
    """The library, built on the first call in a process where the cache has none (raises KernelUnavailable)."""
    built = compile_library(
        "gelu", [_FOLDER / "gelu.cpp", *(_NATIVE / name for name in ("gelu.h", "simd.h", "parallel.h"))]
    )
    built.steptime_gelu.argtypes = [*[_POINTER] * 2, ctypes.c_int64, ctypes.c_int]
    built.steptime_gelu.restype = None
    built.steptime_gelu_backward.argtypes = [*[_POINTER] * 3, ctypes.c_int64, ctypes.c_int]
    built.steptime_gelu_backward.restype = None
    return built


def forward(x: torch.Tensor, out: torch.Tensor) -> None:
    """Writes out = x Phi(x); both float32 and contiguous, of one size."""
    library().steptime_gelu(x.data_ptr(), out.data_ptr(), x.numel(), torch.get_num_threads())


def backward(grad: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    """Writes out = grad (Phi(x) + x phi(x)); all float32 and contiguous, of one size."""
    library().steptime_gelu_backward(grad.data_ptr(), x.data_ptr(), out.data_ptr(), x.numel(), torch.get_num_threads())
