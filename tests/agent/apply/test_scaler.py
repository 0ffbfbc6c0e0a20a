"""The outside truth here is torch.amp.GradScaler, used as its documentation says."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def make():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batches(steps, overflow_at=()):
    torch.manual_seed(2)
    for step in range(steps):
        weight = 1e6 if step in overflow_at else 1.0  # times 2**16 this is beyond what float16 holds
        yield torch.randn(16, 8), torch.randn(16, 1), weight


def by_grad_scaler(steps, overflow_at=(), accumulate=1, clip=None):
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu")
    for step, (x, y, weight) in enumerate(batches(steps, overflow_at), 1):
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        scaler.scale((out.float() - y).square().mean() * weight).backward()
        if step % accumulate == 0:
            scaler.unscale_(optimizer)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return model, scaler.get_scale()


def by_plan(applied, steps, overflow_at=(), accumulate=1, clip=None):
    applied(precision={"autocast": "fp16"})
    model, optimizer = make()
    norms = []
    for step, (x, y, weight) in enumerate(batches(steps, overflow_at), 1):
        ((model(x) - y).square().mean() * weight).backward()
        if step % accumulate == 0:
            if clip:
                norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
            optimizer.step()
            optimizer.zero_grad()
    return model, norms


def assert_same(one, other):
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_weights_are_those_of_a_grad_scaler(applied, accumulate, clip):
    truth, _ = by_grad_scaler(8, accumulate=accumulate, clip=clip)
    found, norms = by_plan(applied, 8, accumulate=accumulate, clip=clip)
    assert_same(found, truth)
    assert applied.ok("precision.autocast")
    assert all(norm < 100 for norm in norms)  # the script's own look at the gradients shows them unscaled


def test_an_overflowing_step_changes_nothing_and_halves_the_scale(applied):
    truth, scale = by_grad_scaler(8, overflow_at=(3, 4))
    found, _ = by_plan(applied, 8, overflow_at=(3, 4))
    assert scale == 2.0**14
    assert_same(found, truth)
    assert "1 step(s) skipped" in applied.why("precision.loss_scale")
    assert f"{2.0**15:g}" in applied.why("precision.loss_scale")


def test_the_loss_itself_stays_unscaled_and_autograd_grad_too(applied):
    applied(precision={"autocast": "fp16"})
    model, _ = make()
    x = torch.randn(16, 8)
    loss = model(x).square().mean()
    (direct,) = torch.autograd.grad(loss, [model[2].bias], retain_graph=True)
    loss.backward()
    torch.testing.assert_close(model[2].bias.grad, direct, rtol=1e-3, atol=1e-5)
    assert loss.item() < 10


def test_a_closure_is_judged_after_it_ran(applied):
    applied(precision={"autocast": "fp16"})
    model, optimizer = make()
    before = [one.detach().clone() for one in model.parameters()]

    def closure(weight):
        optimizer.zero_grad()
        loss = (model(torch.ones(4, 8)).square().mean() + 1) * weight
        loss.backward()
        return loss

    assert optimizer.step(lambda: closure(1e6)) > 1e5
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.step(closure=lambda: closure(1.0))
    assert not torch.equal(before[-1], list(model.parameters())[-1])


def test_a_script_that_scales_by_itself_keeps_its_scaler(applied):
    truth, _ = by_grad_scaler(6)
    applied(precision={"autocast": "fp16"})
    model, optimizer = make()
    scaler = torch.amp.GradScaler("cpu")
    for x, y, _ in batches(6):
        scaler.scale((model(x) - y).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert_same(model, truth)


def test_several_losses_and_regularisers_on_parameters_keep_their_weights(applied):
    """A penalty outside the model is scaled and unscaled like the rest: compared with float64 by formula."""
    applied(precision={"autocast": "fp16"})
    model, _ = make()
    (model(torch.zeros(1, 8)).sum() * 0 + model[0].weight.square().sum()).backward()
    torch.testing.assert_close(
        model[0].weight.grad.double(), 2 * model[0].weight.detach().double(), rtol=1e-6, atol=1e-8
    )
