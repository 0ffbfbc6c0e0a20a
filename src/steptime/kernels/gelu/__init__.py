"""The exact GELU for CPUs, vectorised.

from steptime.kernels import gelu
torch.nn.functional.gelu = gelu.gelu
"""

from steptime.kernels.gelu.op import available, fits, gelu, measure, warm

__all__ = ["available", "fits", "gelu", "measure", "warm"]
