from __future__ import annotations

import pytest
import torch
from torch import nn


def train(cls, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = cls(model.parameters(), lr=0.05, **options)
    torch.manual_seed(2)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach(), optimizer


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("kind", ["fused", "foreach"])
def test_the_flag_is_set_and_the_weights_are_the_scripts(applied, cls, kind):
    truth, _ = train(cls)
    applied(optimizer={"implementation": kind})
    found, optimizer = train(cls)
    assert optimizer.param_groups[0][kind] is True
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-6)
    assert applied.ok("optimizer.implementation")
    assert len(applied.told) == 1  # AdamW's constructor calls Adam's


class Own(torch.optim.AdamW):
    pass


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda ps: torch.optim.AdamW(ps, foreach=False), "itself"),
        (lambda ps: torch.optim.SGD(ps, lr=0.1, differentiable=True), "differentiable"),
        (lambda ps: torch.optim.Adam(ps, lr=torch.tensor(0.1)), "learning rate is a tensor"),
        (lambda ps: Own(ps), "own class"),
    ],
)
def test_a_choice_of_the_script_stands(applied, make, part):
    applied(optimizer={"implementation": "fused"})
    optimizer = make([nn.Parameter(torch.ones(2))])
    assert not optimizer.param_groups[0].get("fused")
    assert part in applied.why("optimizer.implementation")
    assert not applied.ok("optimizer.implementation")


@pytest.mark.parametrize(
    "params",
    [
        lambda m: m.parameters(),
        lambda m: [{"params": m.parameters(), "lr": 0.1}],
        lambda m: ({"params": [one]} for one in m.parameters()),
        lambda m: m.named_parameters(),
        lambda m: [{"params": m.weight}],
    ],
)
def test_parameters_may_come_in_every_form_torch_takes(applied, params):
    applied(optimizer={"implementation": "fused"})
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(params(model))
    assert all(group["fused"] for group in optimizer.param_groups)
    assert optimizer.param_groups[0]["params"][0] is model.weight


def test_errors_of_the_script_are_torchs_own(applied):
    applied(optimizer={"implementation": "fused"})
    with pytest.raises(ValueError, match="Invalid learning rate"):
        torch.optim.AdamW([nn.Parameter(torch.ones(1))], lr=-1.0)
    with pytest.raises(TypeError, match="params argument given to the optimizer"):
        torch.optim.AdamW(nn.Parameter(torch.ones(1)))
    with pytest.raises(TypeError):
        torch.optim.AdamW()
    with pytest.raises(ValueError, match="empty parameter list"):
        torch.optim.AdamW([])


def test_zeroed_gradients_are_dropped_instead(applied):
    applied(optimizer={"zero_grad": "set_to_none"})
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    parameter.sum().backward()
    optimizer.zero_grad()
    assert applied.ok("optimizer.zero_grad") is None  # that is the default already
    parameter.sum().backward()
    optimizer.zero_grad(False)
    assert parameter.grad is None
    assert applied.ok("optimizer.zero_grad")
