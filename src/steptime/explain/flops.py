"""FLOPs and bytes of an op from its recorded input shapes. No formula: None, never a guess.

A multiply-add counts as 2 FLOPs (the convention of torch.utils.flop_counter and of vendors' peak numbers), a FLOP is
counted only in matrix products, convolutions, attention and recurrent layers; elementwise work is bytes, not FLOPs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from math import prod

from steptime.timeline import Inputs

Shape = tuple[int, ...]

DTYPES = {
    "float": ("float32", 4),
    "double": ("float64", 8),
    "c10::Half": ("float16", 2),
    "c10::BFloat16": ("bfloat16", 2),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "c10::Float8_e4m3fn": ("float8_e4m3fn", 1),
    "c10::Float8_e5m2": ("float8_e5m2", 1),
    "c10::complex<float>": ("complex64", 8),
    "long int": ("int64", 8),
    "long": ("int64", 8),
    "int": ("int32", 4),
    "short int": ("int16", 2),
    "short": ("int16", 2),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "bool": ("bool", 1),
}
"""The profiler's names of element types (C++ and 2021 spelling) -> (torch's name, bytes an element)."""


def dtype_of(inputs: Inputs) -> str:
    """Name in torch of the first floating tensor input's type, else of the first tensor's; "" without any."""
    names = [DTYPES[kind][0] for kind in inputs.types if kind in DTYPES]
    return next((name for name in names if "float" in name), names[0] if names else "")


def _mm(inputs: Inputs) -> int:
    """2 m k n (torch.utils.flop_counter.mm_flop)."""
    (m, k), (_, n) = inputs.shapes[0], inputs.shapes[1]
    return 2 * m * k * n


def _addmm(inputs: Inputs) -> int:
    """2 m k n: the addition is not counted (torch.utils.flop_counter.addmm_flop)."""
    (m, k), (_, n) = inputs.shapes[1], inputs.shapes[2]
    return 2 * m * k * n


def _bmm(inputs: Inputs, first: int = 0) -> int:
    """2 b m k n (torch.utils.flop_counter.bmm_flop)."""
    (b, m, k), (_, _, n) = inputs.shapes[first], inputs.shapes[first + 1]
    return 2 * b * m * k * n


def _baddbmm(inputs: Inputs) -> int:
    return _bmm(inputs, 1)


def _mv(inputs: Inputs) -> int:
    """2 m k."""
    m, k = inputs.shapes[0]
    return 2 * m * k


def _addmv(inputs: Inputs) -> int:
    m, k = inputs.shapes[1]
    return 2 * m * k


def _linear(inputs: Inputs) -> int:
    """2 (all leading) k n for weight (n, k), e.g. oneDNN's prepacked linear."""
    rows, (n, k) = inputs.shapes[0], inputs.shapes[1]
    return 2 * prod(rows[:-1]) * k * n


def _convolution(inputs: Inputs) -> int:
    """2 b c_out prod(out) (c_in / groups) prod(kernel) (torch.utils.flop_counter.conv_flop).

    The weight is (c_out, c_in / groups, *kernel); out = (in + 2 pad - dilation (kernel - 1) - 1) / stride + 1.
    """
    x, weight = inputs.shapes[0], inputs.shapes[1]
    stride, padding, dilation = _convolution_settings(inputs, len(x) - 2)
    out = [
        (size + 2 * pad - step * (kernel - 1) - 1) // hop + 1
        for size, pad, step, kernel, hop in zip(x[2:], padding, dilation, weight[2:], stride, strict=True)
    ]
    return 2 * x[0] * prod(out) * prod(weight)


def _convolution_settings(inputs: Inputs, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Stride, padding, dilation of an op whose scalars are "[2, 2]" texts; all backends put padding before stride."""
    lists = [ast.literal_eval(text) for text in inputs.concrete if text.startswith("[") and text[1:2].isdigit()]
    padding, stride, dilation = lists[:3]
    return _full(stride, rank), _full(padding, rank), _full(dilation, rank)


def _full(values: list[int], rank: int) -> list[int]:
    return values * rank if len(values) == 1 else values


def _convolution_backward(inputs: Inputs) -> int:
    """As many as forward for the input's gradient, and for the weight's (conv_backward_flop), by output_mask."""
    grad, _, weight = inputs.shapes[0], inputs.shapes[1], inputs.shapes[2]
    forward = 2 * grad[0] * prod(grad[2:]) * prod(weight)
    mask = ast.literal_eval(inputs.concrete[-1])
    return forward * (int(mask[0]) + int(mask[1]))


def _attention(inputs: Inputs) -> int:
    """Q K^T and P V: 2 b h s_q s_k (d + d_v) (torch.utils.flop_counter.sdpa_flop; causal masks are not halved)."""
    (b, h, s_q, d), (_, _, s_k, _), (_, _, _, d_v) = inputs.shapes[0], inputs.shapes[1], inputs.shapes[2]
    return 2 * b * h * s_q * s_k * (d + d_v)


def _attention_backward(inputs: Inputs) -> int:
    """Five products, Q K^T recomputed (torch.utils.flop_counter.sdpa_backward_flop): 2.5 x forward when d = d_v."""
    (b, h, s_q, d), (_, _, s_k, _), (_, _, _, d_v) = inputs.shapes[1], inputs.shapes[2], inputs.shapes[3]
    return 2 * b * h * s_q * s_k * (3 * d + 2 * d_v)


def _rnn_layer(inputs: Inputs) -> int:
    """2 t b g (i + h) for a layer's weights (g, i) and (g, h): an LSTM has g = 4 h, a GRU 3 h."""
    (t, b, _), (g, i), (_, h) = inputs.shapes[0], inputs.shapes[1], inputs.shapes[2]
    return 2 * t * b * g * (i + h)


def _rnn_layer_backward(inputs: Inputs) -> int:
    """Gradients of inputs and of weights: twice the forward."""
    return 2 * _rnn_layer(inputs)


FORMULAS: dict[str, Callable[[Inputs], int]] = {
    "aten::mm": _mm,
    "aten::addmm": _addmm,
    "aten::_addmm_activation": _addmm,
    "aten::bmm": _bmm,
    "aten::baddbmm": _baddbmm,
    "aten::mv": _mv,
    "aten::addmv": _addmv,
    "aten::addmv_": _addmv,
    "aten::mkldnn_linear": _linear,
    "mkldnn::_linear_pointwise": _linear,
    "mkl::_mkl_linear": _linear,
    "aten::mkldnn_convolution": _convolution,
    "aten::cudnn_convolution": _convolution,
    "aten::miopen_convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::_scaled_dot_product_flash_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "aten::mkldnn_rnn_layer": _rnn_layer,
    "aten::mkldnn_rnn_layer_backward": _rnn_layer_backward,
}
"""Ops that do the arithmetic; the ops they call, and those that call them, are not counted again."""

RECOMPUTED = {name: 0.2 for name in FORMULAS if "attention" in name and name.endswith("backward")}
"""Share of an op's FLOPs that repeats the forward (Q K^T, one product of five): HFU counts it, MFU does not."""


def flops_of(name: str, inputs: Inputs | None) -> int | None:
    """FLOPs of one call; None where no formula is known or the shapes do not fit it."""
    formula = FORMULAS.get(name)
    if formula is None or inputs is None:
        return None
    try:
        return formula(inputs)
    except (IndexError, TypeError, ValueError, SyntaxError, ZeroDivisionError):
        return None


_WITHOUT_READING = re.compile(r"::(copy_|fill_|zero_|bernoulli_|normal_|uniform_|random_|exponential_)$")
_STREAMING = ("elementwise", "random", "normalisation", "copy", "reduction", "optimizer")


def bytes_of(name: str, group: str | None, inputs: Inputs | None) -> int | None:
    """Bytes that one call must move at least: every input read once, the output written once; None where not known.

    The output of a pointwise op is the broadcast of its inputs, of a product (m, n); a reduction's is small: left out.
    """
    if inputs is None or group is None:
        return None
    tensors = [
        (shape, *DTYPES[kind])
        for shape, kind in zip(inputs.shapes, inputs.types, strict=False)
        if kind in DTYPES and all(isinstance(size, int) for size in shape)
    ]
    if not tensors:
        return None
    read = sum(prod(shape) * size for shape, _, size in tensors)
    size = tensors[0][2]
    if name in _OUTPUTS:
        try:
            return read + _OUTPUTS[name](inputs) * size
        except (IndexError, TypeError, ValueError):
            return None
    if group == "embedding" and name == "aten::embedding":
        indices = prod(tensors[1][0]) if len(tensors) > 1 else 0
        return 2 * indices * tensors[0][0][-1] * size + indices * tensors[1][2]
    if group not in _STREAMING:
        return None
    if _WITHOUT_READING.search(name):
        return read  # the first input is written instead of read
    if name.endswith("_"):
        return read + prod(tensors[0][0]) * size
    return read if group == "reduction" else read + max(prod(shape) for shape, _, _ in tensors) * size


def _rows_by_columns(first: int) -> Callable[[Inputs], int]:
    def output(inputs: Inputs) -> int:
        return prod(inputs.shapes[first][:-1]) * inputs.shapes[first + 1][-1]

    return output


_OUTPUTS: dict[str, Callable[[Inputs], int]] = {
    "aten::mm": _rows_by_columns(0),
    "aten::addmm": _rows_by_columns(1),
    "aten::bmm": _rows_by_columns(0),
    "aten::baddbmm": _rows_by_columns(1),
    "aten::mkldnn_convolution": lambda inputs: _convolution(inputs) // (2 * prod(inputs.shapes[1][1:])),
    "aten::cudnn_convolution": lambda inputs: _convolution(inputs) // (2 * prod(inputs.shapes[1][1:])),
    "aten::convolution_backward": lambda inputs: prod(inputs.shapes[1]) + prod(inputs.shapes[2]),
    "aten::_scaled_dot_product_flash_attention_for_cpu": lambda inputs: prod(inputs.shapes[0]),
    "aten::_scaled_dot_product_flash_attention": lambda inputs: prod(inputs.shapes[0]),
    "aten::mkldnn_rnn_layer": lambda inputs: prod(inputs.shapes[0][:2]) * inputs.shapes[2][1],
}
"""Elements of the outputs of ops whose output is no broadcast of the inputs."""
