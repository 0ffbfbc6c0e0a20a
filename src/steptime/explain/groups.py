"""What an op or a kernel computes, by its name. The tables are part of the definition (docs/definitions.md)."""

from __future__ import annotations

import re
from functools import cache

_WORDS = {
    "matmul": """
        mm bmm addmm baddbmm addbmm matmul linear einsum mv addmv dot addr outer int_mm scaled_mm mkldnn_linear
        mkldnn_mm tensordot chain_matmul mkl_linear weight_int8pack_mm
    """,
    "normalisation": """
        softmax log_softmax safe_softmax layer_norm native_layer_norm batch_norm native_batch_norm group_norm
        native_group_norm rms_norm fused_rms_norm instance_norm cudnn_batch_norm miopen_batch_norm
        batch_norm_impl_index mkldnn_batch_norm
    """,
    "reduction": """
        sum mean max min amax amin any all prod var std var_mean std_mean argmax argmin topk sort cumsum cumprod
        logsumexp nansum norm linalg_vector_norm count_nonzero nll_loss nll_loss_forward nll_loss_nd nll_loss2d
        nll_loss2d_forward mse_loss cross_entropy_loss binary_cross_entropy binary_cross_entropy_with_logits l1_loss
        smooth_l1_loss huber_loss kl_div histc bincount aminmax max_pool1d max_pool2d max_pool2d_with_indices
        avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d max_pool3d_with_indices
        cdist
    """,
    "random": """
        bernoulli dropout native_dropout feature_dropout alpha_dropout fused_dropout rand randn randint rand_like
        randn_like randint_like randperm normal uniform exponential random multinomial geometric log_normal cauchy
        rrelu_with_noise poisson
    """,
    "embedding": """
        embedding embedding_bag embedding_dense embedding_sparse index_select gather scatter scatter_add index_put
        index_put_impl index_add take_along_dim
    """,
    "copy": """
        copy to_copy to clone contiguous cat stack pin_memory repeat flip roll index split_with_sizes_copy
        copy_bucket_to_grad copy_grad_to_bucket reorder_to to_dense to_mkldnn repeat_interleave masked_select
        nonzero slice_backward select_backward constant_pad_nd pad
    """,
    "elementwise": """
        add sub mul div addcmul addcdiv lerp neg abs exp expm1 log log1p log2 sqrt rsqrt pow square sin cos tan tanh
        sigmoid relu gelu silu elu leaky_relu hardswish hardsigmoid mish softplus threshold clamp clamp_min
        clamp_max where masked_fill eq ne gt ge lt le logical_and logical_or logical_not logical_xor bitwise_and
        bitwise_or bitwise_not isnan isinf isneginf isposinf isfinite fill zero ones_like zeros_like full_like zeros
        ones full maximum minimum sign rsub reciprocal floor ceil round erf erfinv remainder fmod atan2 sgn tril
        triu masked_scale glu prelu hardtanh log_sigmoid log_sigmoid_forward native_dropout_backward mul_out arange
        linspace floor_divide true_divide nan_to_num complex real selu celu softshrink
    """,
}
_PATTERNS = (
    ("attention", re.compile(r"scaled_dot_product|flash_attention|efficient_attention|flex_attention|fused_sdp")),
    ("convolution", re.compile(r"conv(olution)?([123]d)?(_|$)|^slow_conv|_conv[123]d|im2col|col2im")),
    ("recurrent", re.compile(r"(^|_)(lstm|gru|rnn)(_|$)")),
    ("optimizer", re.compile(r"^fused_(adam|sgd|adagrad)|amp_foreach|amp_update_scale")),
)
_BY_WORD = {word: group for group, words in _WORDS.items() for word in words.split()}

_KERNELS = tuple(
    (group, re.compile(pattern, re.IGNORECASE))
    for group, pattern in (
        ("attention", r"flash|fmha|attention|attn|sdpa"),
        ("random", r"dropout|distribution_|philox|bernoulli|curand"),
        ("optimizer", r"adam|sgd|multi_tensor_apply|lamb_|adagrad"),
        ("convolution", r"conv|fprop|dgrad|wgrad|implicit_gemm|winograd|miopen|nchwToNhwc|nhwcToNchw|igemm"),
        ("recurrent", r"lstm|gru_|rnn|persistent_cell"),
        ("matmul", r"gemm|gemv|cutlass|cublas|ampere_|volta_|hopper_|xmma|Cijk_|nvjet|matmul|\bmm_|_mm_|splitK"),
        ("embedding", r"embedding|gather|scatter|indexSelect|index_put|index_elementwise|indexing_backward"),
        ("normalisation", r"norm|softmax|bn_(fw|bw)"),
        ("reduction", r"reduce|pool|argmax|scan|sort|topk|triton_(red|per)|nll_loss"),
        ("copy", r"copy|CatArray|transpose|permute|cast_kernel"),
        ("elementwise", r"elementwise|pointwise|triton_poi|fill|threshold|activation|gelu|silu|relu"),
    )
)


_OURS = {
    "_Attention": "attention",
    "_AttentionBackward": "attention",
    "_PackedAttention": "attention",
    "_PackedAttentionBackward": "attention",
    "_Dropout": "random",
    "_DropoutBackward": "elementwise",
    "_ApplyKeep": "elementwise",
    "_FeedForward": "matmul",
    "_FeedForwardBackward": "matmul",
    "_Gelu": "elementwise",
    "_GeluBackward": "elementwise",
}
"""Names under which the profiler sees steptime's own kernels (steptime.kernels): those of their autograd functions."""


@cache
def group_of_op(name: str) -> str | None:
    """The group of a CPU op by its name; None for wrappers, views, allocations and what no table knows.

    In-place (add_), backward (gelu_backward), foreach (_foreach_add_) and out variants count as the plain op.
    """
    if name in _OURS:
        return _OURS[name]
    space, colons, base = name.rpartition("::")
    if not colons or space.startswith("autograd") or " " in base:
        return None
    base = base.strip("_").removeprefix("foreach_").removeprefix("cudnn_").removeprefix("mkldnn_rnn_layer") or "rnn"
    group = next((group for group, pattern in _PATTERNS if pattern.search(base)), None)
    if group is None:
        plain = re.sub(r"(_backward(_data|_input|_weight|_elemt|_reduce)?|_out)$", "", base)
        group = _BY_WORD.get(base) or _BY_WORD.get(plain)
    return group


@cache
def group_of_kernel(name: str) -> str:
    """The group of a device kernel by its name; "other" where no rule knows it."""
    return next((group for group, pattern in _KERNELS if pattern.search(name)), "other")


_COMMUNICATION_OP = re.compile(
    r"^(gloo|nccl|mpi|ucc|xccl|hccl):|^c10d::|^_c10d_functional(_autograd)?::|^record_param_comms$|^symm_mem::"
)
_WAITING_OP = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero)$")
_COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
    "wait",
)


@cache
def is_communication_op(name: str) -> bool:
    """A host event that moves data between ranks or waits for it."""
    return _COMMUNICATION_OP.search(name) is not None


@cache
def is_waiting_op(name: str) -> bool:
    """An op that only brings a value to Python, and waits for the device to have it."""
    return _WAITING_OP.search(name) is not None


@cache
def collective_of(name: str) -> str:
    """The collective's plain name: "all_reduce" of "gloo:all_reduce", "c10d::allreduce_" and NCCL kernels."""
    text = name.lower().replace("_", "")
    return next((plain for plain in _COLLECTIVES if plain.replace("_", "") in text), "other")


@cache
def copy_of(name: str) -> str:
    """The direction of a copy by the event's name ("Memcpy HtoD (Pinned -> Device)"), or "memset"."""
    directions = {
        "htod": "host_to_device",
        "dtoh": "device_to_host",
        "dtod": "device_to_device",
        "ptop": "peer_to_peer",
    }
    text = (
        name.lower().replace("hosttodevice", "htod").replace("devicetohost", "dtoh").replace("devicetodevice", "dtod")
    )
    return next(
        (plain for short, plain in directions.items() if short in text), "memset" if "memset" in text else "copy"
    )
