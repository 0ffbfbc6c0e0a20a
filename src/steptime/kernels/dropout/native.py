"""The compiled half of dropout: pointers in, nothing checked. `dropout.op` checks."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from steptime.kernels.build import compile_library

_FOLDER = Path(__file__).parent
_NATIVE = _FOLDER.parent / "native"
_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
_POINTER = ctypes.c_void_p


@functools.cache
def library() -> ctypes.CDLL:
    """The library, built on the first call in a process where the cache has none (raises KernelUnavailable)."""
    built = compile_library("dropout", [_FOLDER / "dropout.cpp", _NATIVE / "philox.h", _NATIVE / "parallel.h"])
    for name in _NAMES.values():
        drop = getattr(built, f"steptime_drop_{name}")
        drop.argtypes = [
            *[_POINTER] * 3, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_double, ctypes.c_int
        ]  # fmt: skip
        drop.restype = None
        apply = getattr(built, f"steptime_apply_{name}")
        apply.argtypes = [*[_POINTER] * 3, ctypes.c_int64, ctypes.c_double, ctypes.c_int]
        apply.restype = None
    built.steptime_philox_block.argtypes = [*[ctypes.c_uint64] * 3, ctypes.POINTER(ctypes.c_uint32)]
    built.steptime_philox_block.restype = None
    return built


def covers(dtype: torch.dtype) -> bool:
    """Whether there is a kernel for this dtype."""
    return dtype in _NAMES


def threshold(p: float) -> int:
    """The least 32-bit word that keeps an element: the drop rate is threshold / 2**32, within 2**-33 of p."""
    return min(round(p * 2**32), 2**32 - 1)


def drop(x: torch.Tensor, out: torch.Tensor, keep: torch.Tensor | None, p: float, seed: int) -> None:
    """Writes out = x * keep / (1 - p) in storage order; `keep` (torch.bool) is written where given. `out` may be `x`.

    All three are dense with equal strides.
    """
    getattr(library(), f"steptime_drop_{_NAMES[x.dtype]}")(
        x.data_ptr(),
        out.data_ptr(),
        None if keep is None else keep.data_ptr(),
        x.numel(),
        seed,
        threshold(p),
        1.0 / (1.0 - p),
        torch.get_num_threads(),
    )


def apply_keep(x: torch.Tensor, keep: torch.Tensor, out: torch.Tensor, scale: float) -> None:
    """Writes out = x * keep * scale in storage order; all dense with equal strides."""
    getattr(library(), f"steptime_apply_{_NAMES[x.dtype]}")(
        x.data_ptr(), keep.data_ptr(), out.data_ptr(), x.numel(), scale, torch.get_num_threads()
    )


def philox_block(seed: int, stream: int, block: int) -> tuple[int, int, int, int]:
    """The four 32-bit words of Philox4x32-10 under key `seed` at counter (block, stream), both 64-bit."""
    words = (ctypes.c_uint32 * 4)()
    library().steptime_philox_block(seed, stream, block, words)
    return words[0], words[1], words[2], words[3]
