"""Attention with dropout for CPUs, forward and backward in one pass over each head.

from steptime.kernels import attention
torch.nn.functional.scaled_dot_product_attention = attention.scaled_dot_product_attention
"""

from steptime.kernels.attention.op import available, mask, measure, scaled_dot_product_attention, warm

__all__ = ["available", "mask", "measure", "scaled_dot_product_attention", "warm"]
