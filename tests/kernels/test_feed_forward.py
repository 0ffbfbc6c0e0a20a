"""The fused feed-forward block is torch's five operations within rounding: float64 is the judge of both."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the name torch's documentation uses

from steptime.kernels.dropout import check_masks
from steptime.kernels.eligible import draw_seed
from steptime.kernels.feed_forward import Block, available, feed_forward, fits, masks, measure, op

pytestmark = pytest.mark.skipif(available() is not None, reason="the feed-forward kernel cannot be built here")

# rows, in, hidden, out: with a last block that is not full, one row, more columns than a block of rows holds
SIZES = [
    (777, 48, 80, 32),
    (3200, 64, 256, 64),
    (33, 16, 16, 16),
    (1, 64, 128, 64),
    (50, 16, 2048, 16),
    (130, 32, 528, 96),
]


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    monkeypatch.setattr(op, "MINIMUM_HIDDEN", 0)
    torch.manual_seed(0)


def block_of(width, hidden, out, dtype=torch.float32):
    sizes = ((hidden, width), (hidden,), (out, hidden), (out,))
    return Block(*((torch.randn(size) / math.sqrt(size[-1])).to(dtype).requires_grad_() for size in sizes))


def truth(x, block, activation, p1, p2, seed):
    """The block in float64, by torch's operations and the masks that the kernel says it draws."""
    x, *weights = (one.detach().double().requires_grad_() for one in (x, *block))
    w1, b1, w2, b2 = weights
    hidden = getattr(F, activation)(F.linear(x, w1, b1))
    if p1:
        hidden = hidden * masks(seed, len(x), w1.shape[0], p1, 1) / (1 - p1)
    y = F.linear(hidden, w2, b2)
    if p2:
        y = y * masks(seed, len(x), w2.shape[0], p2, 2) / (1 - p2)
    return y, (x, *weights)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("activation", "p1", "p2"), [("relu", 0.0, 0.0), ("gelu", 0.1, 0.1), ("relu", 0.5, 0.0), ("gelu", 0.0, 0.3)]
)
def test_values_and_gradients_are_those_of_float64(sizes, activation, p1, p2):
    rows, width, hidden, out = sizes
    x, block = torch.randn(rows, width, requires_grad=True), block_of(width, hidden, out)
    grad = torch.randn(rows, out)
    torch.manual_seed(7)
    seed = draw_seed() if p1 or p2 else 0
    torch.manual_seed(7)
    y = feed_forward(x, block, activation, p1=p1, p2=p2)
    found = torch.autograd.grad(y, (x, *block), grad)
    expected, inputs = truth(x, block, activation, p1, p2, seed)
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=2e-5)
    for one, right in zip(found, torch.autograd.grad(expected, inputs, grad.double()), strict=True):
        # a sum of n products in float32 is off by about sqrt(n) roundings of the largest
        assert (one.double() - right).abs().max() <= 4e-6 * right.abs().max()


def test_it_is_as_near_the_truth_as_torchs_own():
    x, block = torch.randn(640, 64), block_of(64, 256, 64)
    right, _ = truth(x, block, "gelu", 0.0, 0.0, 0)
    theirs = F.linear(F.gelu(F.linear(x, block.w1, block.b1)), block.w2, block.b2)
    ours = feed_forward(x, block, "gelu")
    assert (ours.double() - right).abs().max() <= 2 * (theirs.double() - right).abs().max()


@pytest.mark.parametrize("which", [1, 2])
def test_the_masks_are_those_of_a_right_dropout(which):
    eye = Block(torch.eye(64), torch.zeros(64), torch.eye(64), torch.zeros(64))

    def drops(x, p):
        return feed_forward(x, eye, "relu", p1=p if which == 1 else 0.0, p2=p if which == 2 else 0.0)

    assert check_masks(drops, 0.1, (50, 40, 64), 4).reasons == ()


def test_the_two_masks_of_a_call_and_those_of_two_calls_differ():
    first, second = masks(5, 400, 64, 0.5, 1), masks(5, 400, 64, 0.5, 2)
    for other in (second, masks(6, 400, 64, 0.5, 1)):
        agree = (first == other).double().mean().item()
        # 25,600 coins: 4 standard deviations are 0.0125
        assert abs(agree - 0.5) < 0.0125


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_change_no_output_and_gradients_by_rounding_only(threads):
    x, block = torch.randn(777, 32, requires_grad=True), block_of(32, 128, 48)

    def run():
        torch.manual_seed(3)
        y = feed_forward(x, block, "gelu", p1=0.2, p2=0.2)
        return y, torch.autograd.grad(y.square().sum(), (x, *block))

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone, gradients = run()
        torch.set_num_threads(threads)
        found, others = run()
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, alone)
    for one, right in zip(others, gradients, strict=True):
        torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-4 * right.abs().max().item())


def test_shapes_strides_and_inputs_without_gradient():
    block = block_of(32, 64, 16)
    x = torch.randn(6, 32, 40).transpose(1, 2)
    y = feed_forward(x, block, "relu")
    expected = F.linear(F.relu(F.linear(x, block.w1, block.b1)), block.w2, block.b2)
    torch.testing.assert_close(y, expected)
    theirs = torch.autograd.grad(expected.sum(), block)
    for one, right in zip(torch.autograd.grad(y.sum(), block), theirs, strict=True):
        torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(feed_forward(x, block, "relu"), expected)
    frozen = Block(*(one.detach() for one in block))
    leaf = torch.randn(10, 32, requires_grad=True)
    (found,) = torch.autograd.grad(feed_forward(leaf, frozen, "relu").sum(), leaf)
    (right,) = torch.autograd.grad(F.linear(F.relu(F.linear(leaf, *frozen[:2])), *frozen[2:]).sum(), leaf)
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


def test_second_derivatives_are_torchs():
    x, block = torch.randn(12, 16, requires_grad=True), block_of(16, 32, 16)

    def penalty(function):
        torch.manual_seed(1)
        (slope,) = torch.autograd.grad(function().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (x, block.w1, block.w2))

    torch.manual_seed(1)
    seed = draw_seed()
    keep = masks(seed, 12, 32, 0.25, 1)

    def torchs():
        return F.linear(F.gelu(F.linear(x, block.w1, block.b1)) * keep / 0.75, block.w2, block.b2)

    ours, theirs = penalty(lambda: feed_forward(x, block, "gelu", p1=0.25)), penalty(torchs)
    for one, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, right, rtol=1e-4, atol=1e-5)


def test_infinities_and_nan_reach_the_output():
    block = block_of(16, 32, 16)
    for bad in (math.inf, math.nan):
        x = torch.zeros(20, 16)
        x[3, 5] = bad
        for activation in ("relu", "gelu"):
            y = feed_forward(x, block, activation)
            assert not y[3].isfinite().any()
            assert y[[0, 19]].isfinite().all()


def test_what_it_leaves_to_torch(monkeypatch):
    x, block = torch.randn(40, 32), block_of(32, 64, 16)
    assert fits(x, block)
    assert not fits(x.double(), Block(*(one.double() for one in block)))
    assert not fits(x[:, :24], block_of(24, 64, 16))
    assert not fits(x, block._replace(b1=block.b1.detach()))
    assert not fits(x, block._replace(w1=block.w1.detach().t().contiguous().t().requires_grad_()))
    assert not fits(torch.randn(4, 1024), block_of(1024, 512, 16))
    with torch.autocast("cpu", torch.bfloat16):
        assert not fits(x, block)
    monkeypatch.setattr(op, "MINIMUM_HIDDEN", 40 * 64 + 1)
    assert not fits(x, block)


def test_a_measurement_leaves_the_generator_alone():
    state = torch.get_rng_state()
    cost = measure(64, 16, 32, 16, "gelu")
    assert cost.runs >= 5
    assert cost.total_s > 0
    assert torch.equal(torch.get_rng_state(), state)
