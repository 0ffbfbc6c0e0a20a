"""The compiled half of dropout: pointers in, nothing checked. `dropout.op` checks."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

import torch

from steptime.kernels.build import compile_library

_FOLDER = Path(__file__).parent
_NATIVE = _FOLDER.parent / "native"
_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
_DROPS = {dtype: f"steptime_drop_{name}" for dtype, name in _NAMES.items()}
_APPLIES = {dtype: f"steptime_apply_{name}" for dtype, name in _NAMES.items()}
_POINTER = ctypes.c_void_p


@functools.cache
def library() -> ctypes.CDLL:
    """The library, built on the first call in a process where the cache has none (raises KernelUnavailable)."""
    headers = [_NATIVE / name for name in ("philox.h", "simd.h", "parallel.h")]
    built = compile_library("dropout", [_FOLDER / "dropout.cpp", *headers])
    for dtype in _NAMES:
        drop = getattr(built, _DROPS[dtype])
        drop.argtypes = [
            *[_POINTER] * 3, ctypes.c_int64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_double, ctypes.c_int
        ]  # fmt: skip
        drop.restype = None
        apply = getattr(built, _APPLIES[dtype])
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


def new_mask(x: torch.Tensor) -> torch.Tensor:
    """Room for the mask of `x`: a bit an element, in storage order, lowest bit first."""
    return torch.empty((x.numel() + 7) // 8, dtype=torch.uint8)


def unpacked(mask: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """The mask as a bool tensor of dense `size` and `stride`."""
    bits = (mask.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
    return bits.bool().flatten().as_strided(size, stride)


def drop(x: torch.Tensor, out: torch.Tensor, keep: torch.Tensor | None, p: float, seed: int) -> None:
    """Writes out = x * mask / (1 - p) in storage order, and the mask's bits to `keep` where given (`new_mask`).

    x and out are dense with equal strides; `out` may be `x`.
    """
    getattr(library(), _DROPS[x.dtype])(
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
    """Writes out = x * mask * scale in storage order; x and out dense with equal strides, `keep` the mask's bits."""
    getattr(library(), _APPLIES[x.dtype])(
        x.data_ptr(), keep.data_ptr(), out.data_ptr(), x.numel(), scale, torch.get_num_threads()
    )


def philox_block(seed: int, stream: int, block: int) -> tuple[int, int, int, int]:
    """The four 32-bit words of Philox4x32-10 under key `seed` at counter (block, stream), both 64-bit."""
    words = (ctypes.c_uint32 * 4)()
    library().steptime_philox_block(seed, stream, block, words)
    return words[0], words[1], words[2], words[3]
