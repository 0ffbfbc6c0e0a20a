"""Dropout with a parallel mask behaves as torch's, but for the values of the mask."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F  # noqa: N812 - the name torch's documentation uses
from torch.utils.checkpoint import checkpoint

from steptime.kernels.dropout import dropout, measure, native, op


@pytest.fixture(autouse=True)
def _any_size(monkeypatch):
    monkeypatch.setattr(op, "MINIMUM_ELEMENTS", 0)
    torch.manual_seed(0)


def test_philox_gives_the_known_answers_of_random123():
    """Random123's kat_vectors file, `philox4x32 10`: counter, key, expected words."""
    assert native.philox_block(0, 0, 0) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    ones = 2**64 - 1
    assert native.philox_block(ones, ones, ones) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)
    counter = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    key = (0xA4093822, 0x299F31D0)
    words = native.philox_block(key[0] | key[1] << 32, counter[2] | counter[3] << 32, counter[0] | counter[1] << 32)
    assert words == (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_kept_elements_are_scaled_and_others_zero(dtype):
    x = (torch.randn(33, 70) + 3).to(dtype)
    y = dropout(x, 0.25)
    assert y.dtype == dtype
    kept = y != 0
    assert 0.6 < kept.float().mean() < 0.9
    torch.testing.assert_close(y[kept].double(), x[kept].double() / 0.75, rtol=torch.finfo(dtype).eps, atol=0)


def test_bfloat16_rounds_as_torch_does():
    x = torch.randn(1 << 14).bfloat16()
    y = dropout(x, 0.3)
    kept = y != 0
    assert torch.equal(y[kept], (x.float() * (1 / (1 - 0.3))).bfloat16()[kept])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_mask_depends_on_the_seed_only_not_on_the_threads(threads):
    x = torch.ones(100_003)
    before = torch.get_num_threads()
    native.drop(x, alone := torch.empty_like(x), None, 0.5, 42)
    try:
        torch.set_num_threads(threads)
        native.drop(x, together := torch.empty_like(x), None, 0.5, 42)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)
    native.drop(x, other := torch.empty_like(x), None, 0.5, 43)
    assert not torch.equal(alone, other)


def published_half(seed, stream, element):
    """Block i of 32 gives words 2i, 2i+1, 64+2i, 64+2i+1 of 128; each word is two elements, the lower half first."""
    chunk, place = divmod(element, 256)
    half, word = divmod(place // 2, 64)
    bits = native.philox_block(seed, stream, chunk * 32 + word // 2)[2 * half + word % 2]
    return (bits >> 16 * (place % 2) & 0xFFFF) ^ 0x8000  # read as signed, plus 2^15


def test_the_mask_is_that_of_the_published_generator():
    native.drop(torch.ones(1500), out := torch.empty(1500), None, 0.4, 9)
    for element in (*range(256), 511, 777, 1023, 1499):
        assert (out[element] != 0) == (published_half(9, 0, element) >= 0.4 * 2**16)


def test_where_16_bits_do_not_decide_16_more_do():
    """At p = (h + 1/2) / 2^16 the elements whose half word is h are dropped by half: their words settle it."""
    x = torch.ones(200_000)
    target = 0x3000
    p = (target + 0.5) / 2**16
    native.drop(x, out := torch.empty_like(x), None, p, 4)
    native.drop(x, below := torch.empty_like(x), None, target / 2**16, 4)
    native.drop(x, above := torch.empty_like(x), None, (target + 1) / 2**16, 4)
    undecided = ((below != 0) & (above == 0)).nonzero().flatten().tolist()
    assert undecided
    for element in undecided:
        assert published_half(4, 0, element) == target
        more = native.philox_block(4, 1 << 63, element)[0] & 0xFFFF
        assert (out[element] != 0) == (more >= 0x8000)
    settled = (below != 0) == (above != 0)
    assert torch.equal((out != 0)[settled], (below != 0)[settled])


@pytest.mark.parametrize("elements", [1, 7, 8, 1023, 1025, 5000])
def test_the_saved_mask_is_the_drawn_one(elements):
    x = torch.ones(elements)
    native.drop(x, out := torch.empty_like(x), keep := native.new_mask(x), 0.5, 3)
    assert torch.equal(native.unpacked(keep, x.shape, x.stride()), out != 0)
    native.apply_keep(x, keep, again := torch.empty_like(x), 2.0)
    assert torch.equal(again, out)


def test_seeding_torch_reproduces_and_each_call_draws_once():
    x = torch.ones(5000)
    torch.manual_seed(5)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(dropout(x, 0.5), first)
    assert torch.equal(dropout(x, 0.5), second)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    torch.empty(2, dtype=torch.int64).random_()
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_recomputes_the_same_mask(reentrant):
    x = torch.randn(64, 64, requires_grad=True)

    def block(x):
        return dropout(x * 1.0, 0.5)

    y = checkpoint(block, x, use_reentrant=reentrant)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.T,
        lambda x: x[:, ::2],
        lambda x: x[3],
        lambda x: x[:1].expand(6, 10),
        lambda x: x[1:, 1:],
    ],
)
def test_any_strides_and_the_gradient_uses_the_forward_mask(view):
    base = torch.rand(6, 10, dtype=torch.float64) + 1
    base.requires_grad_()
    y = dropout(view(base), 0.4)
    expected = torch.where(y != 0, view(base) / 0.6, 0.0)
    torch.testing.assert_close(y, expected, rtol=1e-15, atol=0)
    weights = torch.rand_like(y)
    (ours,) = torch.autograd.grad((y * weights).sum(), base)
    (theirs,) = torch.autograd.grad((view(base) * (y != 0) / 0.6 * weights).sum(), base)
    torch.testing.assert_close(ours, theirs)


def test_gradcheck_twice():
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)

    def seeded(x):
        torch.manual_seed(1)
        return dropout(x.T, 0.4).pow(2)

    assert torch.autograd.gradcheck(seeded, x)
    assert torch.autograd.gradgradcheck(seeded, x)


def test_gradients_that_are_expanded_or_batched():
    x = torch.randn(8, 8, requires_grad=True)
    y = dropout(x, 0.5)
    scale = (y != 0).float() * 2
    (summed,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert torch.equal(summed, scale)
    batch = torch.randn(3, 8, 8)
    (batched,) = torch.autograd.grad(y, x, batch, is_grads_batched=True)
    torch.testing.assert_close(batched, batch * scale)


def test_in_place():
    x = torch.ones(100)
    assert dropout(x, 0.5, inplace=True) is x
    assert set(x.tolist()) == {0.0, 2.0}
    strided = torch.ones(10, 20)
    assert dropout(part := strided[:, ::2], 0.5, inplace=True) is part
    assert torch.equal(strided[:, 1::2], torch.ones(10, 10))
    assert set(part.flatten().tolist()) == {0.0, 2.0}
    leaf = torch.ones(100, requires_grad=True)
    y = leaf * 3
    dropout(y, 0.5, inplace=True)
    y.sum().backward()
    assert torch.equal(leaf.grad, y.detach())
    with pytest.raises(RuntimeError, match="leaf Variable"):
        dropout(leaf, 0.5, inplace=True)


def test_trivial_cases_are_torchs():
    x = torch.randn(10)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 0.5, training=False), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros(10))
    assert dropout(torch.empty(0, 3), 0.5).shape == (0, 3)
    state = torch.get_rng_state()
    dropout(x, 0.5, training=False)
    assert torch.equal(torch.get_rng_state(), state)
    for p in (-0.1, 1.1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            dropout(x, p)


def test_nan_and_inf_are_not_hidden():
    """torch multiplies by the mask, so a dropped inf becomes NaN; so here."""
    x = torch.tensor([float("inf"), float("nan")]).repeat(50)
    assert not dropout(x, 0.5).isfinite().any()


def test_nothing_is_recorded_without_gradients():
    x = torch.randn(64, requires_grad=True)
    with torch.no_grad():
        assert dropout(x, 0.5).grad_fn is None
    with torch.inference_mode():
        assert dropout(x, 0.5).is_inference()


def test_autocast_keeps_the_dtype():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.ones(100, dtype=dtype)
            assert dropout(x, 0.5).dtype == F.dropout(x, 0.5).dtype == dtype


def test_compiled_code_uses_torchs_own_without_a_graph_break():
    def f(x):
        return dropout(x, 0.5) * 2

    x = torch.ones(1000, requires_grad=True)
    y = torch.compile(f, backend="aot_eager", fullgraph=True)(x)
    assert set(y.tolist()) == {0.0, 4.0}
    y.sum().backward()
    assert torch.equal(x.grad, y)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch.func.jvp's own
def test_transforms_modes_and_subclasses_fall_through():
    x = torch.ones(4, 50)
    y = torch.func.vmap(lambda row: dropout(row, 0.5), randomness="different")(x)
    assert set(y.flatten().tolist()) == {0.0, 2.0}
    gradient = torch.func.grad(lambda x: dropout(x, 0.5).sum())(x)
    assert set(gradient.flatten().tolist()) == {0.0, 2.0}
    assert dropout(torch.ones(4, 5, device="meta"), 0.5).device.type == "meta"
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        assert type(dropout(mode.from_tensor(x), 0.5)).__name__ == "FakeTensor"
    value, tangent = torch.func.jvp(lambda x: dropout(x, 0.5), (x,), (x,))
    assert torch.equal(value, tangent)


def test_small_tensors_are_left_to_torch(monkeypatch):
    monkeypatch.setattr(op, "MINIMUM_ELEMENTS", 100)
    torch.manual_seed(0)
    small = dropout(torch.ones(99), 0.5)
    torch.manual_seed(0)
    assert torch.equal(small, torch.dropout(torch.ones(99), 0.5, True))


def test_an_unmodified_model_trains_with_it(monkeypatch):
    monkeypatch.setattr(F, "dropout", dropout)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    out = layer(torch.randn(4, 10, 16))
    out.sum().backward()
    assert all(w.grad is not None and w.grad.isfinite().all() for w in layer.parameters())


def test_measure_gives_seconds_and_leaves_the_generator_alone():
    state = torch.get_rng_state()
    cost = measure((64, 50, 64))
    assert cost.forward_s > 0
    assert cost.backward_s > 0
    assert cost.runs >= 5
    assert torch.equal(torch.get_rng_state(), state)
