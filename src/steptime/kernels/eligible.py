"""Whether a tensor is a plain CPU tensor in plain eager mode: the only case a compiled operation may take over."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def eager_mode() -> bool:
    """False inside torch.compile, jit tracing, functorch transforms, dispatch modes and forward-mode derivatives.

    In each of these torch must see its own operation. Under torch.compile that costs nothing: inductor generates its
    own counter-based masks, in parallel.
    """
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or getattr(forward_ad, "_current_level", -1) >= 0
    )


def plain_cpu(*tensors: torch.Tensor) -> bool:
    """False for subclasses (DTensor, FakeTensor, nested), other devices, sparse layouts, batches, negative views."""
    return all(
        type(x) in _PLAIN
        and x.device.type == "cpu"
        and x.layout is torch.strided
        and torch._C._has_storage(x)
        and not x.is_neg()
        for x in tensors
    )


def draw_seed() -> int:
    """One draw from torch's default CPU generator, 0 <= seed < 2**63: seeding the script seeds the masks."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
