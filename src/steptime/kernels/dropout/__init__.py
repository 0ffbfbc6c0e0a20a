"""Dropout with a counter-based, parallel mask for CPUs.

from steptime.kernels import dropout
torch.nn.functional.dropout = dropout.dropout
"""

from steptime.kernels.dropout.distribution import MaskReport, check_masks
from steptime.kernels.dropout.op import available, dropout, measure, warm

__all__ = ["MaskReport", "available", "check_masks", "dropout", "measure", "warm"]
