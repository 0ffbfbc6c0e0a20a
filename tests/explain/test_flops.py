"""FLOPs of real torch steps on the CPU: equal to the values written out by hand, and to torch's own FlopCounterMode."""

import pytest

from steptime.explain import explain_trace
from steptime.explain.flops import RECOMPUTED, bytes_of, flops_of
from steptime.timeline import Inputs, read_trace

torch = pytest.importorskip("torch")
nn = torch.nn


def step(model, x):
    out = model(x)
    loss = (out[0] if isinstance(out, tuple) else out).square().mean()
    loss.backward()


def traced(tmp_path, model, x):
    """The Explanation of one traced step."""
    from torch.profiler import ProfilerActivity, profile, record_function

    step(model, x)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler, record_function("steptime.step#0"):
        step(model, x)
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    return explain_trace(read_trace(path))


def flops(explanation, phase=None):
    return sum(op.flops or 0 for op in explanation.ops if phase in (None, op.phase))


def counted_by_torch(model, x):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step(model, x)
    return counter.get_total_flops()


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def test_a_small_mlp(tmp_path):
    model, x = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), torch.randn(16, 32)
    found = traced(tmp_path, model, x)
    forward = 2 * 16 * 32 * 64 + 2 * 16 * 64 * 8
    # backward: both weights' gradients, and the input's gradient of the second layer only (x needs none)
    backward = forward + 2 * 16 * 64 * 8
    assert flops(found, "forward") == forward
    assert flops(found, "backward") == backward
    assert flops(found) == counted_by_torch(model, x)
    arithmetic = [row for row in found.utilisation if row.work == "arithmetic"]
    assert [(row.dtype, row.flops) for row in arithmetic] == [("float32", forward + backward)]
    assert found.mfu is None


def test_a_conv_net_with_stride_padding_and_groups(tmp_path):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, groups=2),
        nn.Flatten(),
        nn.Linear(784, 10),
    )
    x = torch.randn(4, 3, 16, 16)
    first = 2 * 4 * 16 * 16 * 8 * (3 * 9)
    second = 2 * 4 * 7 * 7 * 16 * (4 * 9)
    linear = 2 * 4 * 784 * 10
    found = traced(tmp_path, model, x)
    assert flops(found, "forward") == first + second + linear
    assert flops(found, "backward") == first + 2 * second + 2 * linear


def test_an_lstm(tmp_path):
    """Per layer and step 2 b 4h (i + h); backward twice that (oneDNN also makes the first input's gradient)."""
    found = traced(tmp_path, nn.LSTM(8, 16, num_layers=2, batch_first=True), torch.randn(4, 10, 8))
    forward = 2 * 10 * 4 * (4 * 16) * ((8 + 16) + (16 + 16))
    assert flops(found, "forward") == forward
    assert flops(found, "backward") == 2 * forward


def test_a_transformer_layer_on_the_fused_path(tmp_path):
    model, x = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), torch.randn(4, 12, 32)
    b, t, d = 4, 12, 32
    linears = 2 * b * t * (d * 3 * d + d * d + d * 64 + 64 * d)
    attention = 2 * (2 * b * t * t * d)
    found = traced(tmp_path, model, x)
    assert flops(found, "forward") == linears + attention
    # backward: twice the linears, without the input's gradient of the first (x needs none); attention recomputes QK^T
    assert flops(found, "backward") == 2 * linears - 2 * b * t * d * 3 * d + attention * 5 // 2
    # FlopCounterMode knows the GPU's fused attentions, not the CPU's
    assert flops(found) - attention * 7 // 2 == counted_by_torch(model, x)


def test_dropout_sends_attention_to_products_that_are_counted_once(tmp_path):
    model, x = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True), torch.randn(4, 12, 32)
    found = traced(tmp_path, model, x)
    products = [op for op in found.ops if op.name == "aten::bmm"]
    assert sum(op.flops or 0 for op in products) == 3 * 2 * (2 * 4 * 12 * 12 * 32)
    assert {op.group for op in products} == {"attention"}
    assert any(op.group == "random" and op.phase == "forward" for op in found.ops)


def test_rows_sum_to_the_compute_time_and_carry_the_forward_caller(tmp_path):
    model, x = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.1), nn.Linear(64, 8)), torch.randn(16, 32)
    found = traced(tmp_path, model, x)
    compute = found.ns(resource="compute")
    assert abs(sum(op.self_ns for op in found.ops if op.resource == "compute") - compute) <= len(found.ops)
    assert all(op.low_ns <= op.self_ns <= op.high_ns for op in found.ops)
    backward_of_dropout = [op for op in found.ops if op.phase == "backward" and op.caller == "aten::dropout"]
    assert any(op.name == "aten::mul" for op in backward_of_dropout)


def test_bytes_are_inputs_and_output():
    two = Inputs(shapes=((10, 20), (10, 20)), types=("float", "float"))
    assert bytes_of("aten::mul", "elementwise", two) == 3 * 200 * 4
    assert bytes_of("aten::add_", "elementwise", two) == 3 * 200 * 4
    assert bytes_of("aten::copy_", "copy", two) == 2 * 200 * 4
    assert bytes_of("aten::mm", "matmul", Inputs(shapes=((2, 3), (3, 4)), types=("c10::BFloat16",) * 2)) == 2 * (
        6 + 12 + 8
    )
    assert bytes_of("aten::bernoulli_", "random", Inputs(shapes=((7,), ()), types=("float", "Scalar"))) == 28
    assert bytes_of("aten::_foreach_add_", "elementwise", Inputs(shapes=(((2,), (3,)),), types=("TensorList",))) is None
    table = Inputs(shapes=((100, 16), (8, 5)), types=("float", "long int"))
    assert bytes_of("aten::embedding", "embedding", table) == 2 * 40 * 16 * 4 + 40 * 8


def test_what_has_no_formula_or_odd_shapes_is_not_guessed():
    assert flops_of("aten::mul", Inputs(shapes=((2, 2),), types=("float",))) is None
    assert flops_of("aten::mm", Inputs(shapes=((2,),), types=("float",))) is None
    assert flops_of("aten::mm", None) is None


def test_the_recomputed_share_of_attention_backward_is_one_product_of_five():
    shape = (2, 3, 5, 7)
    inputs = Inputs(shapes=(shape,) * 4, types=("float",) * 4)
    name = "aten::_scaled_dot_product_flash_attention_backward"
    recomputed = 2 * 2 * 3 * 5 * 5 * 7
    assert flops_of(name, inputs) * RECOMPUTED[name] == pytest.approx(recomputed)
