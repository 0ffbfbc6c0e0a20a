"""Operations that run inside the user's process: CPU dropout masks, attention with dropout, GELU.

    from steptime.kernels.dropout import dropout
    from steptime.kernels.attention import scaled_dot_product_attention
    from steptime.kernels.gelu import gelu

All take the place of torch's function of the same name, fall through to it for what they do not cover, and are C++
compiled on first use by the machine's own compiler (`build`). This package imports torch only in the operations.
"""
