"""The compiled half of attention: pointers in, nothing checked. `attention.op` checks."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from steptime.kernels.build import KernelUnavailable, compile_library
from steptime.kernels.dropout.native import threshold

_FOLDER = Path(__file__).parent
_NATIVE = _FOLDER.parent / "native"
_HEADERS = [_NATIVE / name for name in ("gemm.h", "simd.h", "philox.h", "parallel.h")]


class _View(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), *((axis, ctypes.c_int64) for axis in ("batch", "head", "row", "column"))]


class Call(ctypes.Structure):
    """The arguments of one call: struct SteptimeAttention of attention.cpp, field by field."""

    _fields_ = [
        *((size, ctypes.c_int64) for size in ("batches", "heads", "queries", "keys", "depth")),
        *((name, _View) for name in ("q", "k", "v", "out", "mask", "grad_out", "grad_q", "grad_k", "grad_v")),
        ("stats", ctypes.c_void_p),
        ("keep", ctypes.c_void_p),
        ("seed", ctypes.c_uint64),
        ("scale", ctypes.c_float),
        ("rescale", ctypes.c_float),
        ("threshold", ctypes.c_uint32),
        ("causal", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    ]


@functools.cache
def library() -> ctypes.CDLL:
    """The library, built on the first call in a process where the cache has none (raises KernelUnavailable)."""
    built = compile_library("attention", [_FOLDER / "attention.cpp", *_HEADERS])
    for name in ("forward", "backward", "mask"):
        function = getattr(built, f"steptime_attention_{name}")
        function.argtypes = [ctypes.POINTER(Call)]
        function.restype = None
    built.steptime_attention_call_bytes.restype = ctypes.c_int64
    if built.steptime_attention_call_bytes() != ctypes.sizeof(Call):
        raise KernelUnavailable("the compiler lays the attention call's fields out otherwise than ctypes")
    return built


def new_call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, p: float, seed: int, causal: bool, scale: float
) -> Call:
    """A call with its inputs set: q (B, H, T, D), k and v (B, H, S, D), float32, last stride 1."""
    batches, heads, queries, depth = q.shape
    return Call(
        batches=batches,
        heads=heads,
        queries=queries,
        keys=k.shape[2],
        depth=depth,
        q=view(q),
        k=view(k),
        v=view(v),
        seed=seed,
        scale=scale,
        rescale=1.0 / (1.0 - p),
        threshold=threshold(p),
        causal=causal,
        threads=torch.get_num_threads(),
    )


def new_mask(shape: tuple[int, int, int, int]) -> torch.Tensor:
    """Room for a call's dropout mask, a bit a score: uint8 (B, H, T, ceil(S / 16) * 2)."""
    return torch.empty((*shape[:-1], (shape[-1] + 15) // 16 * 2), dtype=torch.uint8)


def view(x: torch.Tensor) -> _View:
    """A float32 tensor of four dimensions as the library sees it. The caller keeps the tensor alive."""
    return _View(x.data_ptr(), *x.stride())


def run(name: str, call: Call) -> None:
    """Runs "forward", "backward" or "mask"."""
    getattr(library(), f"steptime_attention_{name}")(ctypes.byref(call))
