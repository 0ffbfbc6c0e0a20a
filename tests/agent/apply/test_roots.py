from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from steptime.agent.apply.roots import SEARCH_STEPS

CALL, GROUP, BACKWARD = nn.Module.__call__, Optimizer.add_param_group, torch.Tensor.backward
EVERYTHING = {
    "precision": {"autocast": "fp16", "matmul": "high"},
    "kernels": {"dropout": "parallel", "memory_format": "channels_last"},
    "optimizer": {"implementation": "fused", "zero_grad": "set_to_none"},
    "data": {"prefetch_thread": 2, "workers": 1},
    "collectives": {"static_graph": True, "compression": "bf16"},
    "process": {"gc": "freeze", "flush_denormal": True},
}


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.inner(x)


def train(model, optimizer, steps=5):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()


def test_only_the_outermost_module_is_treated(applied):
    applied(precision={"autocast": "bf16"})
    model = Tower()
    seen = []
    model.inner.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert set(seen) == {torch.bfloat16}  # inside nothing was cast back
    assert model(torch.randn(3, 4)).dtype == torch.float32
    assert [why for name, ok, why in applied.told if ok] == ["forward of Tower on cpu under bf16 autocast"]


def test_two_roots_of_one_class_are_both_found_and_a_third_module_is_not(applied):
    applied(precision={"autocast": "bf16"})
    generator, critic, frozen = (nn.Sequential(nn.Linear(4, 4)) for _ in range(3))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (generator, critic)]
    inside: dict[str, torch.dtype] = {}

    def look(name):
        def hook(module, inputs, output):
            inside[name] = output.dtype

        return hook

    for name, one in (("generator", generator), ("critic", critic), ("frozen", frozen)):
        one[0].register_forward_hook(look(name))
    for _ in range(3):
        critic(generator(torch.randn(2, 4))).sum().backward()
        frozen(torch.randn(2, 4))
        for one in optimizers:
            one.step()
    assert inside == {"generator": torch.bfloat16, "critic": torch.bfloat16, "frozen": torch.float32}


def test_nothing_is_stored_on_the_module(applied):
    applied(precision={"autocast": "bf16"}, kernels={"memory_format": "channels_last"})
    model = Tower()
    before = set(vars(model)), list(model.state_dict())
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert (set(vars(model)), list(model.state_dict())) == before
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    applied.back()
    x = torch.randn(3, 4)
    assert torch.equal(twin(x), model(x))
    assert torch.equal(loaded(x), model(x))


def test_after_the_search_other_modules_are_called_as_ever(applied):
    applied(precision={"autocast": "bf16"})
    model = Tower()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=SEARCH_STEPS)
    assert nn.Module.__call__ is CALL
    assert "__call__" not in vars(nn.Linear)


def test_everything_can_be_taken_back(applied):
    applied(**EVERYTHING)
    model = Tower()
    train(model, torch.optim.AdamW(model.parameters()), steps=2)
    applied.back()
    assert (nn.Module.__call__, Optimizer.add_param_group, torch.Tensor.backward) == (CALL, GROUP, BACKWARD)
    assert "__call__" not in vars(Tower)
    assert model(torch.randn(3, 4)).dtype == torch.float32
    parameter = next(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    first = parameter.grad.clone()
    assert torch.isfinite(first).all()
    assert first.abs().max() < 100  # no scale is left


def test_a_field_that_finds_nothing_says_so(applied):
    applied(
        kernels={"dropout": "parallel", "memory_format": "channels_last"},
        optimizer={"implementation": "foreach", "zero_grad": "set_to_none"},
        data={"prefetch_thread": 2},
        collectives={"static_graph": True},
    )
    model = nn.Linear(4, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert {name: ok for name, ok, _ in applied.told} == {
        "kernels.dropout": False,
        "kernels.memory_format": False,
        "optimizer.implementation": True,
        "optimizer.zero_grad": False,
        "data.prefetch_thread": False,
        "collectives.static_graph": False,
    }
    assert "no DistributedDataParallel" in applied.why("collectives.static_graph")


def test_an_applier_that_raises_leaves_the_script_and_the_other_sections_alone(applied, monkeypatch):
    from steptime.agent.apply import optimizer as section

    def broken(one):
        raise RuntimeError("torch of another world")

    monkeypatch.setattr(section, "_patch_zero_grad", broken)
    constructor = torch.optim.AdamW.__init__
    applied(optimizer={"implementation": "fused", "zero_grad": "set_to_none"}, precision={"autocast": "bf16"})
    assert torch.optim.AdamW.__init__ is constructor
    assert applied.why("optimizer.implementation") == "RuntimeError: torch of another world"
    model = Tower()
    train(model, torch.optim.AdamW(model.parameters()))
    assert applied.ok("precision.autocast")
    assert not applied.ok("optimizer.implementation")


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_a_module_that_is_only_evaluated_is_no_root(applied, mode):
    applied(precision={"autocast": "bf16"})
    model = Tower()
    torch.optim.SGD(model.parameters(), lr=0.1)
    if mode == "eval":
        model.eval()(torch.randn(2, 4))
    else:
        with torch.no_grad():
            model(torch.randn(2, 4))
    assert applied.told == []
