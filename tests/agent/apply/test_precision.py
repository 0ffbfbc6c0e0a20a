from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple

import pytest
import torch
from torch import nn

from steptime.agent.apply.precision import widened


def make():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 1))


def losses(forward, model, optimizer, steps=6):
    torch.manual_seed(2)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        x, y = torch.randn(16, 8), torch.randn(16, 1)
        loss = nn.functional.mse_loss(forward(model, x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_bf16_is_what_torch_autocast_written_by_hand_gives(applied):
    def by_hand(model, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        return out.float()

    model = make()
    truth = losses(by_hand, model, torch.optim.AdamW(model.parameters()))
    applied(precision={"autocast": "bf16"})
    model = make()
    assert losses(lambda m, x: m(x), model, torch.optim.AdamW(model.parameters())) == truth
    assert all(one.dtype == torch.float32 for one in model.parameters())


def test_evaluation_runs_under_it_too(applied):
    applied(precision={"autocast": "bf16"})
    model = make()
    losses(lambda m, x: m(x), model, torch.optim.AdamW(model.parameters()))
    x = torch.randn(4, 8)
    with torch.no_grad():
        found = model.eval()(x)
        applied.back()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            truth = model(x)
    assert truth.dtype == torch.bfloat16
    assert torch.equal(found, truth.float())


def test_a_script_under_its_own_autocast_is_left_alone(applied):
    applied(precision={"autocast": "fp16"})
    model = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.optim.SGD(model.parameters(), lr=0.1)
        assert model(torch.randn(4, 8)).dtype == torch.bfloat16
    assert not applied.ok("precision.autocast")
    assert "own autocast" in applied.why("precision.autocast")


def test_half_precision_parameters_are_left_alone(applied):
    applied(precision={"autocast": "bf16"})
    model = make().bfloat16()
    torch.optim.SGD(model.parameters(), lr=0.1)
    assert model(torch.randn(4, 8).bfloat16()).dtype == torch.bfloat16
    assert "already" in applied.why("precision.autocast")


Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] | None = None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_outputs_are_widened_through_every_container(dtype):
    half = torch.ones(2, dtype=dtype)
    whole = torch.ones(2, dtype=torch.int64)
    double = torch.ones(2, dtype=torch.float64)
    found = widened(
        {"pair": Pair(half, [half, whole]), "out": Output(half, (half, double)), "od": OrderedDict(x=half), "n": None}
    )
    assert isinstance(found["pair"], Pair)
    assert isinstance(found["out"], Output)
    assert isinstance(found["od"], OrderedDict)
    assert found["n"] is None
    assert found["pair"].b[1] is whole
    assert found["out"].hidden[1] is double
    for one in (found["pair"].a, found["pair"].b[0], found["out"].logits, found["out"].hidden[0], found["od"]["x"]):
        assert one.dtype == torch.float32


@pytest.mark.slow
def test_a_hugging_face_output_stays_one():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    one = outputs.SequenceClassifierOutput(loss=torch.ones(()), logits=torch.ones(2, dtype=torch.bfloat16))
    found = widened(one)
    assert type(found) is type(one)
    assert list(found) == ["loss", "logits"]
    assert found.logits.dtype == found["logits"].dtype == torch.float32


def test_matmul_precision_is_set_and_taken_back(applied):
    before = torch.get_float32_matmul_precision()
    applied(precision={"matmul": "medium"})
    assert torch.get_float32_matmul_precision() == "medium"
    applied.back()
    assert torch.get_float32_matmul_precision() == before
