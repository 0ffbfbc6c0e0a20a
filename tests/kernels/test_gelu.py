"""gelu by vectors is torch's within rounding: float64 is the judge of both."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the name torch's documentation uses

from steptime.kernels.gelu import available, fits, gelu, measure, op

pytestmark = pytest.mark.skipif(available() is not None, reason="the gelu kernel cannot be built here")


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    monkeypatch.setattr(op, "MINIMUM_ELEMENTS", 0)
    torch.manual_seed(0)


def truth(x):
    """gelu and its derivative in float64; erfc keeps the digits of the lower tail."""
    x = x.detach().double()
    distribution = torch.special.erfc(-x / math.sqrt(2)) / 2
    return x * distribution, distribution + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def slope(x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(gelu(x).sum(), x)[0]


def test_values_and_gradients_are_those_of_float64():
    x = torch.linspace(-14, 14, 400_003)
    value, derivative = truth(x)
    error = (gelu(x).double() - value).abs()
    # half an ulp of a float32 from 4 on is 2.4e-7, from 8 on 4.8e-7
    assert error[x < 8].max() <= 4e-7
    assert error.max() <= 5e-7
    assert (slope(x).double() - derivative).abs().max() <= 4e-7
    # relative: the 16th power multiplies the rounding of its base
    assert (error[x > -1] <= 4e-6 * value[x > -1].abs()).all()
    assert (error[x > -5] <= 1e-5 * value[x > -5].abs()).all()


def test_it_is_as_near_the_truth_as_torchs_own():
    x = torch.randn(100_000) * 2
    value, _ = truth(x)
    ours, theirs = ((found.double() - value).abs().max() for found in (gelu(x), F.gelu(x)))
    assert ours <= 1.5 * theirs


@pytest.mark.parametrize("elements", [1, 3, 7, 8, 9, 15, 17, 33, 16383, 16385, 50_001])
def test_sizes_that_fill_no_vector(elements):
    x = torch.randn(elements)
    value, derivative = truth(x)
    torch.testing.assert_close(gelu(x).double(), value, rtol=0, atol=6e-7)
    torch.testing.assert_close(slope(x).double(), derivative, rtol=0, atol=6e-7)


def test_nothing_beside_the_tensor_is_written():
    x = torch.randn(40)
    op.native.forward(x[3:24], room := torch.full((40,), 7.0)[5:])
    assert torch.equal(room[21:], torch.full((14,), 7.0))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_threads_do_not_matter(threads):
    x = torch.randn(100_003)
    alone = gelu(x)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert torch.equal(gelu(x), alone)
    finally:
        torch.set_num_threads(before)


def test_infinities_nan_zeros_and_denormals_are_as_torch_has_them():
    special = [math.inf, -math.inf, math.nan, 0.0, -0.0, 3e38, -3e38, 1e-40, -1e-40, 1e-45, 1e-30, -1e-30, 30.0, -30.0]
    x = torch.tensor(special)
    torch.testing.assert_close(gelu(x), F.gelu(x), rtol=4e-6, atol=1e-45, equal_nan=True)
    assert torch.equal(gelu(x)[3:5].signbit(), x[3:5].signbit())
    # torch's derivative at infinity is NaN (inf * 0); here it is the limit
    limits = torch.tensor([1.0, 0.0, math.nan, 0.5, 0.5, 1.0, 0.0, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 0.0])
    torch.testing.assert_close(slope(x), limits, rtol=0, atol=4e-7, equal_nan=True)


def test_second_derivatives():
    x = torch.randn(50, requires_grad=True)
    weights = torch.randn(50, requires_grad=True)
    (first,) = torch.autograd.grad((gelu(x) * weights).sum(), x, create_graph=True)
    found = torch.autograd.grad(first.square().sum(), (x, weights))
    exact, factors = (one.detach().double().requires_grad_() for one in (x, weights))
    (first,) = torch.autograd.grad((F.gelu(exact) * factors).sum(), exact, create_graph=True)
    for ours, wanted in zip(found, torch.autograd.grad(first.square().sum(), (exact, factors)), strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-5)


def test_gradients_that_are_expanded_strided_or_batched():
    x = torch.randn(8, 12, requires_grad=True)
    _, derivative = truth(x)
    y = gelu(x)
    for grad in (torch.ones(()).expand(8, 12), torch.randn(12, 8).T):
        (found,) = torch.autograd.grad(y, x, grad, retain_graph=True)
        torch.testing.assert_close(found.double(), grad.double() * derivative, rtol=1e-6, atol=1e-6)
    batch = torch.randn(3, 8, 12)
    (found,) = torch.autograd.grad(y, x, batch, is_grads_batched=True)
    torch.testing.assert_close(found.double(), batch.double() * derivative, rtol=1e-6, atol=1e-6)


def test_an_input_that_is_overwritten_before_backward_is_an_error():
    x = torch.randn(20, requires_grad=True)
    hidden = x * 1
    y = gelu(hidden)
    hidden.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(20, 30).T,
        torch.randn(20, 30)[:, ::2],
        torch.randn(20).double(),
        torch.randn(20).bfloat16(),
        torch.empty(0, 3),
        torch.randn(20, device="meta"),
    ],
    ids=["transposed", "strided", "float64", "bfloat16", "empty", "meta"],
)
def test_what_does_not_fit_is_torchs_own(x):
    assert not fits(x)
    found = gelu(x)
    if x.device.type != "meta":
        assert torch.equal(found, F.gelu(x))


def test_the_approximation_by_tanh_and_small_tensors_are_torchs_own(monkeypatch):
    x = torch.randn(1000)
    assert torch.equal(gelu(x, approximate="tanh"), F.gelu(x, approximate="tanh"))
    with pytest.raises(RuntimeError, match="approximate"):
        gelu(x, approximate="other")
    monkeypatch.setattr(op, "MINIMUM_ELEMENTS", 1001)
    assert not fits(x)
    assert torch.equal(gelu(x), F.gelu(x))


def test_nothing_is_recorded_without_gradients():
    x = torch.randn(64, requires_grad=True)
    with torch.no_grad():
        assert gelu(x).grad_fn is None
    with torch.inference_mode():
        assert gelu(x).is_inference()


def test_compiled_code_uses_torchs_own_without_a_graph_break():
    x = torch.randn(1000, requires_grad=True)
    y = torch.compile(lambda x: gelu(x) * 2, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(y, F.gelu(x) * 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch.func.jvp's own
def test_transforms_modes_and_subclasses_fall_through():
    x = torch.randn(4, 50)
    assert torch.equal(torch.func.vmap(gelu)(x), F.gelu(x))
    gradient = torch.func.grad(lambda x: gelu(x).sum())(x)
    torch.testing.assert_close(gradient.double(), truth(x)[1], rtol=1e-6, atol=1e-6)
    value, tangent = torch.func.jvp(gelu, (x,), (torch.ones_like(x),))
    assert torch.equal(value, F.gelu(x))
    torch.testing.assert_close(tangent, gradient)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        assert type(gelu(mode.from_tensor(x))).__name__ == "FakeTensor"


def test_measure_gives_seconds_and_leaves_the_generator_alone():
    state = torch.get_rng_state()
    cost = measure((64, 50, 64))
    assert cost.forward_s > 0
    assert cost.backward_s > 0
    assert torch.equal(torch.get_rng_state(), state)
