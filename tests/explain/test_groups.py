"""Names of real ops and kernels, and what a reader would call them."""

import pytest

from steptime.explain.groups import collective_of, copy_of, group_of_kernel, group_of_op, is_communication_op


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("aten::addmm", "matmul"),
        ("aten::linear", "matmul"),
        ("aten::bernoulli_", "random"),
        ("aten::native_dropout", "random"),
        ("aten::native_dropout_backward", "elementwise"),
        ("aten::gelu_backward", "elementwise"),
        ("_Attention", "attention"),
        ("_Dropout", "random"),
        ("aten::_foreach_addcdiv_", "elementwise"),
        ("aten::convolution_backward", "convolution"),
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::cudnn_batch_norm_backward", "normalisation"),
        ("aten::_softmax_backward_data", "normalisation"),
        ("aten::_log_softmax", "normalisation"),
        ("aten::mkldnn_rnn_layer", "recurrent"),
        ("aten::lstm", "recurrent"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::max_pool2d_with_indices_backward", "reduction"),
        ("aten::linalg_vector_norm", "reduction"),
        ("aten::copy_", "copy"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::view", None),
        ("aten::empty_like", None),
        ("autograd::engine::evaluate_function: MmBackward0", None),
        ("ProfilerStep#3", None),
    ],
)
def test_ops(name, group):
    assert group_of_op(name) == group


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("ampere_sgemm_128x64_tn", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", "matmul"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32", "matmul"),
        ("void pytorch_flash::flash_fwd_kernel<...>", "attention"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>", "elementwise"),
        ("void at::native::reduce_kernel<512, 1>", "reduction"),
        ("triton_poi_fused_add_0", "elementwise"),
        ("void multi_tensor_apply_kernel<AdamFunctor>", "optimizer"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW", "normalisation"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32", "convolution"),
        ("mystery", "other"),
    ],
)
def test_kernels(name, group):
    assert group_of_kernel(name) == group


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("gloo:all_reduce", "all_reduce"),
        ("c10d::allreduce_", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclKernel_AllGather_RING", "all_gather"),
        ("_c10d_functional::all_to_all_single", "all_to_all"),
        ("ncclDevKernel_Generic_1", "other"),
    ],
)
def test_collectives(name, plain):
    assert collective_of(name) == plain


def test_communication_ops_and_copies():
    assert is_communication_op("gloo:broadcast")
    assert not is_communication_op("aten::copy_")
    assert copy_of("Memcpy HtoD (Pinned -> Device)") == "host_to_device"
    assert copy_of("CopyDeviceToHost") == "device_to_host"
    assert copy_of("Memset (Device)") == "memset"
