from __future__ import annotations

import math
import pickle

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import nn

from steptime.agent.apply.kernels import unfused_attention
from steptime.kernels import dropout as kernel

needs_compiler = pytest.mark.skipif(kernel.available() is not None, reason="the dropout kernel cannot be built here")
SIZE = 64 * 512  # above the size from which the kernel takes over


@needs_compiler
def test_dropout_of_modules_and_functions_is_replaced_in_training_only(applied):
    applied(kernels={"dropout": "parallel"})
    x = torch.ones(SIZE, requires_grad=True)
    y = nn.Dropout(0.25)(x)
    kept = y != 0
    assert set(y.detach().unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert abs(kept.float().mean().item() - 0.75) < 5 * math.sqrt(0.25 * 0.75 / SIZE)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert applied.ok("kernels.dropout")
    assert torch.equal(nn.Dropout(0.25).eval()(x), x)
    # torch's own generator draws other masks from the same seed
    torch.manual_seed(3)
    ours = F.dropout(x, 0.25)
    applied.back()
    torch.manual_seed(3)
    assert not torch.equal(F.dropout(x, 0.25), ours)


@needs_compiler
@pytest.mark.parametrize("need_weights", [False, True])
def test_a_transformer_trains_and_its_attention_weights_are_dropped(applied, need_weights, monkeypatch):
    shapes = []
    original = kernel.dropout

    def watched(x, p=0.5, training=True, inplace=False):
        shapes.append(tuple(x.shape))
        return original(x, p, training, inplace)

    monkeypatch.setattr(kernel, "dropout", watched)
    applied(kernels={"dropout": "parallel"})
    attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
    x = torch.randn(64, 20, 16)
    attention(x, x, x, need_weights=need_weights)[0].sum().backward()
    assert shapes == [(128, 20, 20)] if need_weights else [(64, 2, 20, 20)]
    assert applied.ok("kernels.dropout")
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    shapes.clear()
    layer(x).sum().backward()
    assert len(shapes) == 4
    shapes.clear()
    with torch.no_grad():
        layer.eval()(x)
    assert shapes == []


@needs_compiler
def test_fused_attention_is_said_to_act_only_where_it_does(applied):
    q = torch.randn(2, 2, 64, 8, requires_grad=True)
    applied(kernels={"dropout": "parallel", "attention": "fused"})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        F.scaled_dot_product_attention(q, q, q, dropout_p=0.1).sum().backward()
    assert applied.ok("kernels.attention") is False
    assert "outside autocast" in applied.why("kernels.attention")
    assert applied.ok("kernels.dropout")  # its masks are still drawn in parallel
    F.scaled_dot_product_attention(q, q, q, dropout_p=0.1).sum().backward()
    assert applied.ok("kernels.attention")
    assert torch.equal(F.scaled_dot_product_attention(q, q, q), torch._C._nn.scaled_dot_product_attention(q, q, q))


@needs_compiler
def test_masks_too_small_for_the_kernel_are_not_counted_as_its_work(applied):
    applied(kernels={"dropout": "parallel"})
    F.dropout(torch.ones(100), 0.5)
    assert applied.ok("kernels.dropout") is None


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_unfused_attention_is_torchs_where_nothing_is_dropped(mask, scale):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7))
    given = None
    if mask == "bool":
        given = torch.rand(5, 7) > 0.4
        given[2] = False  # a row that sees nothing
    elif mask == "float":
        given = torch.randn(2, 1, 5, 7, dtype=torch.float64)
    causal = mask == "causal"
    truth = F.scaled_dot_product_attention(q, k, v, given, 0.0, causal, scale=scale)
    found = unfused_attention(q, k, v, given, 0.0, causal, scale, lambda x, p: x)
    torch.testing.assert_close(found, truth)
    wanted = torch.autograd.grad(truth.square().sum(), (q, k, v))
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), (q, k, v)), wanted)


def test_a_mask_beside_is_causal_is_refused_as_torch_does():
    q = torch.randn(1, 1, 4, 4)
    with pytest.raises(RuntimeError, match="attn_mask"):
        unfused_attention(q, q, q, torch.ones(4, 4), 0.1, True, None, F.dropout)


def test_a_kernel_that_cannot_be_built_leaves_torchs_own(applied, monkeypatch):
    monkeypatch.setattr(kernel, "available", lambda: "no C++ compiler was found")
    before = F.dropout, F.scaled_dot_product_attention
    applied(kernels={"dropout": "parallel"})
    assert (F.dropout, F.scaled_dot_product_attention) == before
    assert applied.why("kernels.dropout") == "no C++ compiler was found"


@needs_compiler
def test_gelu_is_replaced_with_the_same_losses(applied):
    def losses():
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, activation="gelu", batch_first=True)
        model = nn.Sequential(layer, nn.GELU(), nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        x, found = torch.randn(32, 16, 32), []
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return model, found

    _, truth = losses()
    applied(kernels={"gelu": "fast"})
    model, found = losses()
    assert model[0].activation is F.gelu
    assert found == pytest.approx(truth, rel=1e-5, abs=1e-5)
    assert applied.ok("kernels.gelu")
    assert "(32, 16, 64)" in applied.why("kernels.gelu")
    stored = pickle.dumps(model)
    applied.back()
    assert pickle.loads(stored)[0].activation is F.gelu


@needs_compiler
def test_gelu_is_not_said_to_act_where_it_is_torchs(applied):
    applied(kernels={"gelu": "fast"})
    large = torch.randn(SIZE)
    for x, approximate in ((torch.randn(100), "none"), (large.double(), "none"), (large, "tanh")):
        assert torch.equal(F.gelu(x, approximate=approximate), torch._C._nn.gelu(x, approximate=approximate))
    assert applied.ok("kernels.gelu") is None
    torch.compile(F.gelu, backend="aot_eager")(large)
    assert applied.ok("kernels.gelu") is False


def test_convolutions_run_in_nhwc_with_the_same_result(applied):
    def losses():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.LazyLinear(2))
        model(torch.randn(2, 3, 8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        found = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(2, 3, 8, 8)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return model, found

    _, truth = losses()
    applied(kernels={"memory_format": "channels_last"})
    model, found = losses()
    assert found == pytest.approx(truth, rel=1e-4)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert applied.ok("kernels.memory_format")


def _losses(layer, mask=None):
    """Five losses of a layer trained from one seed, and its last gradients."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    x, found = torch.randn(64, 20, 32), []
    for _ in range(5):
        optimizer.zero_grad()
        y = layer(x, mask, is_causal=mask is not None)
        loss = y.square().mean() + y[..., 0].sum() * 1e-3
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def _layer(**options):
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(32, 2, 128, **{"dropout": 0.0, "batch_first": True} | options)


@needs_compiler
@pytest.mark.parametrize("activation", ["relu", "gelu", nn.GELU(), torch.relu])
@pytest.mark.parametrize("norm_first", [False, True])
def test_feed_forward_blocks_are_fused_with_the_same_losses(applied, activation, norm_first):
    truth = _losses(_layer(activation=activation, norm_first=norm_first))
    applied(kernels={"feed_forward": "fused"})
    assert _losses(_layer(activation=activation, norm_first=norm_first)) == pytest.approx(truth, rel=1e-5, abs=1e-5)
    assert applied.ok("kernels.feed_forward")
    assert "(64, 20, 32)" in applied.why("kernels.feed_forward")


@needs_compiler
def test_feed_forward_blocks_of_a_layer_made_under_another_gelu(applied):
    truth = _losses(_layer(activation="gelu"))
    before = _layer(activation="gelu")
    applied(kernels={"feed_forward": "fused", "gelu": "fast"})
    assert _losses(before) == pytest.approx(truth, rel=1e-5, abs=1e-5)
    assert applied.ok("kernels.feed_forward")
    assert applied.ok("kernels.gelu") is False, "no GELU is left outside the blocks"


@needs_compiler
def test_decoder_layers_too(applied):
    def losses():
        torch.manual_seed(0)
        layer = nn.TransformerDecoderLayer(32, 2, 128, dropout=0.0, batch_first=True)
        x, memory = torch.randn(64, 20, 32), torch.randn(64, 7, 32)
        loss = layer(x, memory).square().mean()
        loss.backward()
        return [loss.item(), *(one.grad.norm().item() for one in layer.parameters())]

    truth = losses()
    applied(kernels={"feed_forward": "fused"})
    assert losses() == pytest.approx(truth, rel=1e-4, abs=1e-6)
    assert applied.ok("kernels.feed_forward")


@needs_compiler
def test_feed_forward_blocks_that_are_not_torchs_own_stay_as_they_are(applied):
    class Adapted(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1.0

    def changed(change):
        layer = _layer()
        change(layer)
        return layer

    changes = {
        "hook": lambda layer: layer.linear1.register_forward_hook(lambda module, args, out: out * 2),
        "adapter": lambda layer: setattr(layer, "linear2", Adapted(128, 32)),
        "activation": lambda layer: setattr(layer, "activation", nn.GELU(approximate="tanh")),
        "no bias": lambda layer: setattr(layer.linear1, "bias", None),
        "frozen": lambda layer: layer.linear1.weight.requires_grad_(False),
    }
    truths = {name: _losses(changed(change)) for name, change in changes.items()}
    applied(kernels={"feed_forward": "fused"})
    for name, truth in truths.items():
        assert _losses(changed(changes[name])) == truth, name
    assert not applied.ok("kernels.feed_forward")
    assert _layer().double()(torch.randn(64, 20, 32).double()).dtype == torch.float64
    assert not applied.ok("kernels.feed_forward")


@needs_compiler
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_keeps_its_projection_whole(applied, batch_first, causal, monkeypatch):
    mask = nn.Transformer.generate_square_subsequent_mask(20 if batch_first else 64) if causal else None

    def grown():
        one = _layer(batch_first=batch_first)
        one.self_attn.dropout = 1e-7  # drops nothing in so few scores, and takes the path of dropout
        return one

    truth = _losses(grown(), mask)
    applied(kernels={"attention": "fused"})
    monkeypatch.setattr(F, "scaled_dot_product_attention", None)  # the way by three parts is not taken
    assert _losses(grown(), mask) == pytest.approx(truth, rel=1e-5, abs=1e-5)
    assert applied.ok("kernels.attention")


@needs_compiler
def test_attention_with_masks_weights_or_other_keys_takes_torchs_way(applied):
    applied(kernels={"attention": "fused"})
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(32, 2, dropout=0.1, batch_first=True)
    x, other = torch.randn(64, 20, 32), torch.randn(64, 9, 32)
    padding = torch.zeros(64, 20, dtype=torch.bool)
    padding[:, 15:] = True
    _, weights = attention(x, x, x)
    assert weights.shape == (64, 20, 20)
    # padded keys have no influence: only their values differ
    changed = x.clone()
    changed[:, 15:] = 7.0
    outs = []
    for one in (x, changed):
        torch.manual_seed(4)
        outs.append(attention(x, one, one, key_padding_mask=padding, need_weights=False)[0])
    torch.testing.assert_close(*outs)
    assert attention(x, other, other, need_weights=False)[0].shape == x.shape
    with pytest.raises(RuntimeError, match="attn_mask"):
        attention(x, x, x, need_weights=False, is_causal=True)
