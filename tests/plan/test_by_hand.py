from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from steptime.errors import SteptimeError
from steptime.plan import Plan, unified_diff, what_remains

REPOSITORY = Path(__file__).resolve().parents[2]
EVERYTHING = {
    "optimizer.implementation": "fused",
    "data.workers": 2,
    "data.persistent_workers": True,
    "process.threads": 2,
    "process.flush_denormal": True,
    "process.mkldnn": False,
    "precision.matmul": "high",
    "precision.autocast": "bf16",
    "compiler.mode": "default",
    "kernels.dropout": "parallel",
}


def patched(folder: Path, source: str, patch: dict) -> str:
    """The script after GNU patch applied the diff: the outside judge of the format."""
    script = folder / "train.py"
    script.write_bytes(source.encode())
    diff = unified_diff(script, Plan().with_patch(patch))
    assert diff is not None
    subprocess.run(
        ["patch", "-p1", "--binary", "--fuzz=0"], input=diff.encode(), cwd=folder, check=True, capture_output=True
    )
    after = script.read_bytes().decode()
    ast.parse(after)
    return after


needs_patch = pytest.mark.skipif(shutil.which("patch") is None, reason="GNU patch is not installed")


@needs_patch
def test_the_example_is_edited_wherever_the_plan_can_be_written_by_hand(tmp_path):
    source = (REPOSITORY / "examples" / "ticks" / "train.py").read_text("utf-8")
    after = patched(tmp_path, source, EVERYTHING)
    for line in (
        "torch.set_num_threads(2)",
        "torch.set_flush_denormal(True)",
        "torch.backends.mkldnn.enabled = False",
        'torch.set_float32_matmul_precision("high")',
        "    train_loader = DataLoader(train, batch_size=args.batch_size, shuffle=True, "
        "num_workers=2, persistent_workers=True)",
        "    test_loader = DataLoader(test, batch_size=1024)",
        "    model.compile()",
        "    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01, fused=True)",
        "            with torch.autocast(next(model.parameters()).device.type, dtype=torch.bfloat16):",
        "                loss = criterion(model(x), y)",
    ):
        assert line in after.splitlines()
    (tmp_path / "train.py").write_text(source)
    assert list(what_remains(tmp_path / "train.py", Plan().with_patch(EVERYTHING))) == ["kernels.dropout"]


@needs_patch
@pytest.mark.parametrize(
    ("call", "edited"),
    [
        ("AdamW(ps)", "AdamW(ps, fused=True)"),
        ("AdamW(ps, lr=1e-3,)", "AdamW(ps, lr=1e-3, fused=True,)"),
        ("AdamW((p for p in ps))", "AdamW((p for p in ps), fused=True)"),
        ("AdamW(p for p in ps if p.requires_grad)", None),
        (
            "AdamW(\n    ps,  # all\n    lr=1e-3,  # μ (\n)",
            "AdamW(\n    ps,  # all\n    lr=1e-3, fused=True,  # μ (\n)",
        ),
        ("AdamW(ps, lr=float('1e-3'))", "AdamW(ps, lr=float('1e-3'), fused=True)"),
        ("AdamW(ps, lr=(1e-3))", "AdamW(ps, lr=(1e-3), fused=True)"),
        ("AdamW(ps, foreach=True)", None),
        ("AdamW(**options)", None),
    ],
)
@pytest.mark.parametrize("ending", ["\n", "\r\n", ""])
def test_a_keyword_is_added_where_python_allows_it(tmp_path, call, edited, ending):
    source = f"from torch.optim import AdamW\né = 'é'; optimizer = {call}\n"
    if ending == "\r\n":
        source = source.replace("\n", "\r\n")
    elif not ending:
        source = source.rstrip("\n")
    patch = {"optimizer.implementation": "fused"}
    if edited is None:
        (tmp_path / "train.py").write_bytes(source.encode())
        plan = Plan().with_patch(patch)
        assert unified_diff(tmp_path / "train.py", plan) is None
        assert "optimizer.implementation" in what_remains(tmp_path / "train.py", plan)
    else:
        wanted = edited.replace("\n", "\r\n") if ending == "\r\n" else edited
        assert patched(tmp_path, source, patch) == source.replace(
            call.replace("\n", "\r\n" if ending == "\r\n" else "\n"), wanted
        )


@pytest.mark.parametrize(
    ("source", "field", "value", "part"),
    [
        ("import torch\nx = torch.optim.SGD\n", "optimizer.implementation", "fused", "no construction"),
        ("from torch.utils.data import DataLoader as D\na = D(x)\nb = D(y)\n", "data.workers", 2, "0 candidates"),
        ("from torch.utils.data import DataLoader as D\na = D(x, num_workers=8)\n", "data.workers", 2, "num_workers=8"),
        ("import torch as t\n", "process.threads", 2, "by that name"),
        ("import torch\n", "compiler.mode", "default", "0 candidates"),
        ("import torch\n", "precision.autocast", "fp16", "GradScaler"),
        ("import torch\n", "process.allocator", "large_pools", "environment"),
    ],
)
def test_what_is_not_certain_is_left_to_the_user_with_the_reason(tmp_path, source, field, value, part):
    script = tmp_path / "train.py"
    script.write_text(source)
    plan = Plan().with_patch({field: value})
    assert unified_diff(script, plan) is None
    assert part in what_remains(script, plan)[field]


def test_an_autocast_is_not_put_around_a_larger_expression(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = make()\noptimizer = torch.optim.SGD(model.parameters())\nloss = model(x).sum() + 1\n"
    )
    assert (
        "larger expression"
        in what_remains(script, Plan().with_patch({"precision.autocast": "bf16"}))["precision.autocast"]
    )


def test_a_script_that_is_no_python_is_one_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("def (")
    with pytest.raises(SteptimeError, match="not Python source"):
        unified_diff(script, Plan())
    with pytest.raises(SteptimeError, match="cannot be read"):
        unified_diff(tmp_path / "none.py", Plan())
