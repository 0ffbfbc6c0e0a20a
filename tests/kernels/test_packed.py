"""Attention on a joint projection: the same numbers as attention on its three parts, and no other memory is written."""

from __future__ import annotations

import math

import pytest
import torch

from steptime.kernels.attention import available, fits_packed, mask, op, packed_attention, reference
from steptime.kernels.eligible import draw_seed

pytestmark = pytest.mark.skipif(available() is not None, reason="the attention kernel cannot be built here")
BATCHES, TOKENS, HEADS, DEPTH = 6, 21, 3, 12
WIDTH = HEADS * DEPTH


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    monkeypatch.setattr(op, "MINIMUM_SCORES", 0)
    torch.manual_seed(0)


def projection(batch_first):
    shape = (BATCHES, TOKENS) if batch_first else (TOKENS, BATCHES)
    return torch.randn(*shape, 3 * WIDTH, requires_grad=True)


def truth(qkv, batch_first, is_causal, p, seed):
    """In float64, by the formula, with the mask that the kernel says it draws; q, k, v are thirds of the last axis."""
    exact = qkv.detach().double().requires_grad_()
    thirds = exact.split(WIDTH, dim=-1)
    if not batch_first:
        thirds = tuple(one.transpose(0, 1) for one in thirds)
    q, k, v = (one.reshape(BATCHES, TOKENS, HEADS, DEPTH).transpose(1, 2) for one in thirds)
    keep = mask(seed, (BATCHES, HEADS, TOKENS, TOKENS), p)
    out = reference.attention(q, k, v, keep, p=p, attn_mask=None, is_causal=is_causal, scale=1 / math.sqrt(DEPTH))
    out = out.transpose(1, 2).reshape(BATCHES, TOKENS, WIDTH)
    return exact, out if batch_first else out.transpose(0, 1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("is_causal", [False, True])
def test_values_and_gradients_are_those_of_float64(batch_first, is_causal):
    qkv, p = projection(batch_first), 0.2
    assert fits_packed(qkv, HEADS, p, batch_first=batch_first)
    torch.manual_seed(5)
    seed = draw_seed()
    torch.manual_seed(5)
    out = packed_attention(qkv, HEADS, p, is_causal=is_causal, batch_first=batch_first)
    exact, expected = truth(qkv, batch_first, is_causal, p, seed)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-6)
    grad = torch.randn_like(out)
    (found,) = torch.autograd.grad(out, qkv, grad)
    (right,) = torch.autograd.grad(expected, exact, grad.double())
    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
def test_second_derivatives_are_those_of_float64(batch_first):
    qkv, p = projection(batch_first), 0.2
    torch.manual_seed(5)
    seed = draw_seed()
    torch.manual_seed(5)
    out = packed_attention(qkv, HEADS, p, batch_first=batch_first)
    exact, expected = truth(qkv, batch_first, False, p, seed)
    seconds = []
    for y, x in ((out, qkv), (expected, exact)):
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        seconds.append(torch.autograd.grad(slope.square().sum(), x)[0].double())
    torch.testing.assert_close(*seconds, rtol=1e-4, atol=1e-4)


def test_without_gradient_it_is_the_same():
    qkv = projection(True)
    torch.manual_seed(2)
    recorded = packed_attention(qkv, HEADS, 0.1)
    torch.manual_seed(2)
    with torch.no_grad():
        assert torch.equal(packed_attention(qkv, HEADS, 0.1), recorded)


def test_what_it_leaves_to_torch():
    qkv = projection(True)
    assert not fits_packed(qkv, HEADS, 0.0)
    assert not fits_packed(qkv.double(), HEADS, 0.1)
    assert not fits_packed(qkv.transpose(0, 1), HEADS, 0.1)
    assert not fits_packed(qkv, 5, 0.1)
    assert not fits_packed(qkv[0], HEADS, 0.1)
