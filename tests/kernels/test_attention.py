"""Attention with dropout equals the float64 mathematics under the same mask, and torch's wherever it falls through.

Tolerance: inputs are of order 1; an output or gradient may differ from float64 by 4e-6 of the larger of 1 and its
largest element (float32 has 1.2e-7, and sums here run over up to 300 terms).
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the name torch's documentation uses
from torch.utils.checkpoint import checkpoint

from steptime.kernels import attention as kernel
from steptime.kernels.attention import op, reference
from steptime.kernels.dropout import check_masks
from steptime.kernels.eligible import draw_seed

TOLERANCE = 4e-6
attention = kernel.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _every_shape(monkeypatch):
    monkeypatch.setattr(op, "MINIMUM_SCORES", 0)
    monkeypatch.setattr(op, "HEADS_A_THREAD", 0.0)
    torch.manual_seed(0)


def heads_of(batches, heads, rows, depth):
    """(B, H, T, D) as nn.MultiheadAttention makes it: a transposed view of (B, T, H * D)."""
    return torch.randn(batches, rows, heads, depth).transpose(1, 2).requires_grad_()


def assert_near(ours, exact, tolerance=TOLERANCE):
    exact = exact.detach()
    assert float((ours.detach().double() - exact).abs().max()) <= tolerance * max(1.0, float(exact.abs().max()))


def compare(q, k, v, *, p=0.3, attn_mask=None, is_causal=False, scale=None, tolerance=TOLERANCE):
    """Output and the three gradients against float64 torch under the mask that the call's seed gives."""
    state = torch.get_rng_state()
    out = attention(q, k, v, attn_mask, p, is_causal, scale)
    torch.set_rng_state(state)
    shape = (*q.shape[:-1], k.shape[-2])
    keep = kernel.mask(draw_seed(), shape, p)
    exact_inputs = [x.detach().double().requires_grad_() for x in (q, k, v)]
    scores = exact_inputs[0] @ exact_inputs[1].mT * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    if is_causal:
        scores = scores.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    exact = (torch.softmax(scores, -1) * keep / (1 - p)) @ exact_inputs[2]
    grad = torch.randn_like(out)
    ours = torch.autograd.grad(out, (q, k, v), grad)
    theirs = torch.autograd.grad(exact, exact_inputs, grad.double())
    for left, right in zip((out, *ours), (exact, *theirs), strict=True):
        assert_near(left, right, tolerance)


@pytest.mark.parametrize(
    "shape",
    [
        (2, 4, 50, 50, 16),
        (2, 4, 64, 64, 32),
        (1, 2, 256, 256, 64),
        (2, 3, 7, 13, 5),
        (1, 1, 1, 3, 2),
        (3, 1, 17, 1, 9),
        (1, 2, 130, 300, 33),
        (1, 1, 300, 70, 256),
    ],
)
@pytest.mark.parametrize("is_causal", [False, True])
def test_output_and_gradients_are_those_of_float64(shape, is_causal):
    batches, heads, queries, keys, depth = shape
    q = heads_of(batches, heads, queries, depth)
    compare(q, heads_of(batches, heads, keys, depth), heads_of(batches, heads, keys, depth), is_causal=is_causal)


@pytest.mark.parametrize("p", [0.01, 0.5, 0.95])
@pytest.mark.parametrize("scale", [None, 0.05])
def test_rates_and_scales(p, scale):
    compare(*(heads_of(2, 2, 21, 8) for _ in range(3)), p=p, scale=scale)


@pytest.mark.parametrize("shape", [(20, 30), (1, 30), (2, 1, 1, 30), (2, 3, 20, 30), (1, 3, 20, 1), (3, 20, 30)])
@pytest.mark.parametrize("boolean", [False, True])
def test_masks_that_broadcast(shape, boolean):
    attn_mask = torch.randn(shape)
    if boolean:
        attn_mask = attn_mask > -0.8
        attn_mask[..., :1] = True
    k, v = heads_of(2, 3, 30, 16), heads_of(2, 3, 30, 16)
    compare(heads_of(2, 3, 20, 16), k, v, attn_mask=attn_mask)


def test_a_mask_with_any_strides():
    attn_mask = torch.randn(30, 20).T
    compare(heads_of(2, 3, 20, 16), heads_of(2, 3, 30, 16), heads_of(2, 3, 30, 16), attn_mask=attn_mask)


def test_inputs_with_any_strides():
    packed = torch.randn(2, 24, 3, 3, 16, requires_grad=True)  # B T (q k v) H D
    q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
    compare(q, k, v)
    backwards = torch.randn(2, 3, 16, 24).mT.requires_grad_()  # last stride is not 1
    compare(backwards, torch.randn(2, 3, 9, 32)[..., ::2].requires_grad_(), torch.randn(2, 3, 9, 16).requires_grad_())


@pytest.mark.parametrize("boolean", [False, True])
def test_rows_that_may_look_nowhere_are_zero_as_torchs_are(boolean):
    attn_mask = torch.ones(6, 9, dtype=torch.bool)
    attn_mask[2] = False
    if not boolean:
        attn_mask = torch.zeros(6, 9).masked_fill(~attn_mask, -math.inf)
    q, k, v = (heads_of(1, 2, rows, 8) for rows in (6, 9, 9))
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask, 0.2)
    ours = attention(q, k, v, attn_mask, 0.2)
    assert torch.equal(theirs[:, :, 2], torch.zeros(1, 2, 8))
    assert torch.equal(ours[:, :, 2], torch.zeros(1, 2, 8))
    gradients = torch.autograd.grad(ours.sum(), (q, k, v))
    assert all(g.isfinite().all() for g in gradients)
    assert torch.equal(gradients[0][:, :, 2], torch.zeros(1, 2, 8))


def test_nan_and_inf_spread_as_in_torch():
    q, k, v = (torch.randn(1, 1, 4, 8) for _ in range(3))
    q[0, 0, 1, 3] = math.nan
    q[0, 0, 2, 0] = math.inf
    ours, theirs = attention(q, k, v, None, 0.1), F.scaled_dot_product_attention(q, k, v, None, 0.1)
    assert torch.equal(ours.isnan().all(-1), theirs.isnan().all(-1))
    assert ours[0, 0, 1].isnan().all()


def test_large_scores_do_not_overflow():
    q, k, v = (heads_of(1, 1, 20, 8) for _ in range(3))
    compare(q, k, v, scale=300.0, tolerance=1e-3)  # scores of some 2000, known to 1e-4 in float32


def test_a_mask_generated_again_in_backward_is_the_saved_one(monkeypatch):
    inputs = [heads_of(2, 2, 300, 16) for _ in range(3)]
    results = []
    for room in (op.SAVED_MASK_BYTES, 0):
        monkeypatch.setattr(op, "SAVED_MASK_BYTES", room)
        torch.manual_seed(3)
        results.append(torch.autograd.grad(attention(*inputs, None, 0.4).square().sum(), inputs))
    assert all(torch.equal(saved, again) for saved, again in zip(*results, strict=True))


def test_the_result_does_not_depend_on_the_threads():
    inputs = [heads_of(3, 2, 40, 16) for _ in range(3)]
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(3)
            results.append(torch.autograd.grad(attention(*inputs, None, 0.4).square().sum(), inputs))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, three) for one, three in zip(*results, strict=True))


def test_the_mask_has_the_distribution_of_dropout():
    """Of a constant row of scores every kept probability is 1/S/(1-p): v = identity shows the mask itself."""
    keys = 64

    def dropped(x, p):
        queries = torch.zeros(*x.shape[:-1], keys)
        return x * attention(queries, queries, torch.eye(keys).expand(*x.shape[:-2], keys, keys), None, p) * keys

    report = check_masks(dropped, 0.1, (10, 4, keys, keys), 4)
    assert report.ok, report


@pytest.mark.parametrize("case", ["apart", "one tensor", "last stride 2"])
def test_a_double_backward_is_right(case):
    q, k, v = (torch.randn(1, 2, 5, 3, requires_grad=True) for _ in range(3))
    uses = {"apart": lambda q, k, v: (q, k, v), "one tensor": lambda q, k, v: (q, q, q + 0 * k * v)}
    uses["last stride 2"] = lambda q, k, v: (q.mT.contiguous().mT, k, v)
    use = uses[case]
    attn_mask = torch.zeros(5, 5).masked_fill(torch.rand(5, 5) < 0.2, -math.inf)
    torch.manual_seed(1)
    keep = kernel.mask(draw_seed(), (1, 2, 5, 5), 0.4)

    def penalty(out, inputs):
        gradients = torch.autograd.grad(out.pow(2).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in gradients), inputs)

    torch.manual_seed(1)
    ours = penalty(attention(*use(q, k, v), attn_mask, 0.4), (q, k, v))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    options = {"p": 0.4, "attn_mask": attn_mask.double(), "is_causal": False, "scale": 1 / math.sqrt(3)}
    theirs = penalty(reference.attention(*use(*exact), keep, **options), exact)
    for left, right in zip(ours, theirs, strict=True):
        assert_near(left, right)


def test_only_wanted_gradients_and_batched_ones():
    q, k, v = torch.randn(1, 2, 6, 4, requires_grad=True), torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4)
    out = attention(q, k, v, None, 0.3)
    batch = torch.randn(3, *out.shape)
    (batched,) = torch.autograd.grad(out, q, batch, is_grads_batched=True, retain_graph=True)
    for one, gradient in zip(batch, batched, strict=True):
        assert_near(torch.autograd.grad(out, q, one, retain_graph=True)[0], gradient.double())


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_recomputes_the_same_mask(reentrant):
    inputs = [torch.randn(1, 2, 9, 4, requires_grad=True) for _ in range(3)]

    def gradients(call):
        torch.manual_seed(5)
        return torch.autograd.grad(call(*inputs).square().sum(), inputs) if not reentrant else _grads(call, inputs)

    def plain(q, k, v):
        return attention(q, k, v, None, 0.5)

    expected = gradients(plain)
    found = gradients(lambda *x: checkpoint(plain, *x, use_reentrant=reentrant))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def _grads(call, inputs):
    for x in inputs:
        x.grad = None
    call(*inputs).square().sum().backward()
    return [x.grad for x in inputs]


def test_three_dimensions_and_no_gradients():
    q, k, v = (torch.randn(4, 9, 8) for _ in range(3))
    torch.manual_seed(2)
    flat = attention(q, k, v, torch.ones(4, 9, 9, dtype=torch.bool), 0.2)
    torch.manual_seed(2)
    assert torch.equal(flat, attention(*(x.unsqueeze(1) for x in (q, k, v)), None, 0.2).squeeze(1))
    with torch.no_grad():
        assert attention(q.requires_grad_(), k, v, None, 0.2).grad_fn is None


def _falls_through(monkeypatch, call):
    """Whether `call(attention)` consumes torch's generator exactly as torch's own function does, with its result."""
    monkeypatch.setattr(op.native, "run", lambda *_: pytest.fail("the kernel ran"))
    torch.manual_seed(7)
    ours = call(attention)
    torch.manual_seed(7)
    torch.testing.assert_close(ours, call(F.scaled_dot_product_attention), rtol=0, atol=0)


@pytest.mark.parametrize(
    "case",
    ["no dropout", "float64", "bfloat16", "autocast", "gqa", "learned mask", "value depth", "deep", "empty", "batch"],
)
def test_what_is_not_covered_is_torchs(case, monkeypatch):
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    calls = {
        "no dropout": lambda f: f(q, k, v),
        "float64": lambda f: f(q.double(), k.double(), v.double(), dropout_p=0.2),
        "bfloat16": lambda f: f(q.bfloat16(), k.bfloat16(), v.bfloat16(), dropout_p=0.2),
        "gqa": lambda f: f(q, k[:, :2], v[:, :2], dropout_p=0.2, enable_gqa=True),
        "learned mask": lambda f: f(q, k, v, torch.zeros(6, 6, requires_grad=True), 0.2),
        "value depth": lambda f: f(q, k, v[..., :3], dropout_p=0.2),
        "deep": lambda f: f(*[torch.ones(1, 1, 2, 300)] * 3, dropout_p=0.2),
        "empty": lambda f: f(q[:0], k[:0], v[:0], dropout_p=0.2),
        "batch": lambda f: f(q[:1], k, v, dropout_p=0.2),
    }
    if case == "autocast":

        def under_autocast(f):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return f(q, k, v, dropout_p=0.2)

        calls[case] = under_autocast
    _falls_through(monkeypatch, calls[case])


def test_small_and_single_heads_are_left_to_torch(monkeypatch):
    q = torch.randn(1, 1, 16, 8)
    monkeypatch.setattr(op, "MINIMUM_SCORES", 257)
    _falls_through(monkeypatch, lambda f: f(q, q, q, dropout_p=0.2))
    monkeypatch.setattr(op, "MINIMUM_SCORES", 0)
    monkeypatch.setattr(op, "HEADS_A_THREAD", 0.5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    _falls_through(monkeypatch, lambda f: f(q, q, q, dropout_p=0.2))


def test_torchs_errors_are_torchs():
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(RuntimeError, match="is_causal"):
        attention(q, q, q, torch.ones(4, 4, dtype=torch.bool), 0.2, True)


def test_compiled_code_and_transforms_use_torchs_own():
    q = torch.randn(2, 2, 6, 8)
    compiled = torch.compile(lambda q: attention(q, q, q, None, 0.5) * 2, backend="aot_eager", fullgraph=True)
    assert compiled(q.requires_grad_()).grad_fn is not None
    out = torch.func.vmap(lambda q: attention(q, q, q, None, 0.5), randomness="different")(q.detach())
    assert out.shape == q.shape


def test_an_unmodified_multihead_attention_uses_it(monkeypatch):
    """Dropout differs by design; without it (p tiny) layer and gradients agree with torch's."""
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    layer.self_attn.dropout = 1e-9
    x = torch.randn(3, 11, 32)
    theirs = layer(x)
    theirs_grads = torch.autograd.grad(theirs.square().sum(), list(layer.parameters()))
    seen = []

    def counted(*args, **kwargs):
        seen.append(args[0].stride())
        return attention(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    ours = layer(x)
    ours_grads = torch.autograd.grad(ours.square().sum(), list(layer.parameters()))
    assert len(seen) == 1
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(ours_grads, theirs_grads, rtol=1e-4, atol=1e-4)


def test_measure_gives_seconds():
    state = torch.get_rng_state()
    cost = kernel.measure(4, 2, 20, 20, 8, 0.1)
    assert cost.forward_s > 0
    assert cost.backward_s > 0
    assert cost.total_s == cost.forward_s + cost.backward_s
    assert torch.equal(torch.get_rng_state(), state)
