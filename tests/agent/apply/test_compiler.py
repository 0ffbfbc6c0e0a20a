from __future__ import annotations

import sysconfig

import pytest
import torch
from torch import nn

from steptime.agent.apply import compiler as section

can_compile = pytest.mark.skipif(section.unavailable() is not None, reason="torch.compile cannot work here")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)])
        self.heads = nn.ModuleList([nn.Linear(8, 1), nn.Tanh()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.heads[1](self.heads[0](x))


def train(steps=3):
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@pytest.fixture
def eager_backend(monkeypatch):
    """torch.compile with everything but code generation, which takes tens of seconds."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda fn, mode=None: compile_(fn, backend="aot_eager"))
    monkeypatch.setattr(section, "unavailable", lambda: None)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# dynamo looks at .grad of a layer's input
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("scope", ["model", "blocks"])
def test_training_is_compiled_and_evaluation_is_not(applied, eager_backend, scope):
    _, truth = train()
    applied(compiler={"mode": "default", "scope": scope})
    names = list(Net().state_dict())
    model, found = train()
    assert found == pytest.approx(truth, rel=1e-5)
    assert applied.ok("compiler.mode")
    assert float(applied.why("compiler.seconds")) > 0
    assert list(model.state_dict()) == names
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs >= 1
    with torch.no_grad():
        model.eval()(torch.randn(5, 8))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    if scope == "blocks":
        assert "3 layers" in applied.why("compiler.scope")


def test_repeated_layers_are_those_of_one_class():
    model = Net()
    assert section.repeated_layers(model) == list(model.layers)


def test_without_repeated_layers_blocks_finds_nothing(applied, eager_backend):
    applied(compiler={"mode": "default", "scope": "blocks"})
    model = nn.Linear(2, 1)
    torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2))
    assert "no repeated layers" in applied.why("compiler.mode")


def test_without_python_headers_it_is_refused_and_the_script_runs_eagerly(applied, monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    applied(compiler={"mode": "default"})
    assert "header" in applied.why("compiler.mode") or "C++ compiler" in applied.why("compiler.mode")
    assert len(train()[1]) == 3
    assert not applied.ok("compiler.mode")


def test_without_a_compiler_it_is_refused(monkeypatch):
    monkeypatch.setattr(section.shutil, "which", lambda name: None)
    assert "C++ compiler" in str(section.unavailable())


def test_a_failed_compilation_is_reported_and_the_script_goes_on(applied, monkeypatch):
    from torch._dynamo.exc import BackendCompilerFailed

    def compile_(fn, mode=None):
        def run(*args, **kwargs):
            raise BackendCompilerFailed(fn, RuntimeError("g++ was killed"), None)

        return run

    _, truth = train()
    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(section, "unavailable", lambda: None)
    applied(compiler={"mode": "default"})
    assert train()[1] == truth
    assert "g++ was killed" in applied.why("compiler.mode")
    assert not applied.ok("compiler.mode")


def test_an_error_of_the_model_is_its_own(applied, eager_backend):
    applied(compiler={"mode": "default"})
    model = Net()
    torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(RuntimeError):
        model(torch.randn(4, 9))


@can_compile
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, while inductor is imported and works
def test_dropout_precision_and_fused_step_work_compiled_together(applied):
    torch._dynamo.reset()
    applied(
        compiler={"mode": "default"},
        kernels={"dropout": "parallel"},
        precision={"autocast": "bf16"},
        optimizer={"implementation": "fused"},
    )
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(256, 8)
    first = last = 0.0
    for step in range(30):
        optimizer.zero_grad()
        loss = (model(x) - x[:, :1]).square().mean()
        loss.backward()
        optimizer.step()
        first, last = (loss.item(), last) if step == 0 else (first, loss.item())
    assert last < 0.6 * first
    assert {name: applied.ok(name) for name, _, _ in applied.told} == {
        "precision.autocast": True,
        "compiler.mode": True,
        "compiler.seconds": True,
        "kernels.dropout": True,
        "optimizer.implementation": True,
    }
    assert not torch.equal(model(x), model(x))  # the masks are drawn anew at each call
