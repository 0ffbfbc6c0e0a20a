"""Operations that run inside the user's process: CPU dropout masks, attention with dropout, GELU, feed-forward blocks.

    from steptime.kernels.dropout import dropout
    from steptime.kernels.attention import scaled_dot_product_attention
    from steptime.kernels.gelu import gelu
    from steptime.kernels.feed_forward import feed_forward

All take the place of torch's functions, fall through to it for what they do not cover, and are C++
compiled on first use by the machine's own compiler (`build`). This package imports torch only in the operations.
"""
