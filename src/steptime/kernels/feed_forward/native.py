"""The compiled half of the feed-forward block: pointers in, nothing checked. `feed_forward.op` checks."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from steptime.kernels.build import KernelUnavailable, compile_library

_FOLDER = Path(__file__).parent
_NATIVE = _FOLDER.parent / "native"
_HEADERS = [_NATIVE / name for name in ("gelu.h", "gemm.h", "simd.h", "philox.h", "parallel.h")]
_POINTERS = ("x", "w1", "b1", "w2", "b2", "y", "grad_y", "grad_x", "partials")
_GRADIENTS = ("grad_w1", "grad_b1", "grad_w2", "grad_b2")


class Call(ctypes.Structure):
    """The arguments of one call: struct SteptimeFeedForward of feed_forward.cpp, field by field."""

    _fields_ = [
        *((size, ctypes.c_int64) for size in ("rows", "in_", "hidden", "out")),
        *((name, ctypes.c_void_p) for name in (*_POINTERS, *_GRADIENTS, "keep1", "keep2")),
        ("seed", ctypes.c_uint64),
        ("scale1", ctypes.c_float),
        ("scale2", ctypes.c_float),
        ("threshold1", ctypes.c_uint32),
        ("threshold2", ctypes.c_uint32),
        ("gelu", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    ]


@functools.cache
def library() -> ctypes.CDLL:
    """The library, built on the first call in a process where the cache has none (raises KernelUnavailable)."""
    built = compile_library("feed_forward", [_FOLDER / "feed_forward.cpp", *_HEADERS])
    for name in ("steptime_feed_forward", "steptime_feed_forward_backward"):
        function = getattr(built, name)
        function.argtypes = [ctypes.POINTER(Call)]
        function.restype = None
    built.steptime_feed_forward_call_bytes.restype = ctypes.c_int64
    if built.steptime_feed_forward_call_bytes() != ctypes.sizeof(Call):
        raise KernelUnavailable("the compiler lays the feed-forward call's fields out otherwise than ctypes")
    return built


def forward(call: Call) -> None:
    """Writes y, and the masks where given."""
    library().steptime_feed_forward(ctypes.byref(call))


def backward(call: Call) -> None:
    """Writes the gradients, from x, the weights, grad_y and the masks."""
    library().steptime_feed_forward_backward(ctypes.byref(call))
