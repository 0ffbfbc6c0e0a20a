"""Attention with dropout for CPUs, forward and backward in one pass over each head.

from steptime.kernels import attention
torch.nn.functional.scaled_dot_product_attention = attention.scaled_dot_product_attention
"""

from steptime.kernels.attention.op import available, mask, measure, scaled_dot_product_attention, warm
from steptime.kernels.attention.packed import fits as fits_packed
from steptime.kernels.attention.packed import packed_attention

__all__ = [
    "available",
    "fits_packed",
    "mask",
    "measure",
    "packed_attention",
    "scaled_dot_product_attention",
    "warm",
]
