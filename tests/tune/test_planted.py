"""Planted remedies on a real script: each one removes a planted pause, so only its harm can keep it out of the plan."""

import sys
import tempfile
from pathlib import Path

import pytest

from steptime.explain.remedies import Micro
from steptime.tune import NoBooks, ScriptTrials, TuneSettings, tune

pytestmark = [pytest.mark.spawned, pytest.mark.slow]

SCRIPT = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(208, 16)
y = x @ torch.randn(16, 1) + 0.1 * torch.randn(208, 1)
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-14)
while True:
    for bx, by in loader:
        time.sleep(0.02)
        optimizer.zero_grad()
        loss = 1e-6 * (model(bx) - by).square().mean()
        loss.backward()
        optimizer.step()
"""

PAUSE = """
def apply(report):
    import time
    sleep = time.sleep
    time.sleep = lambda seconds: None if seconds == 0.02 else sleep(seconds)
    harm()
"""

HARMS = {
    "dropout_off": (
        "CHANGES_RANDOM_STREAM = True",
        """
    import torch
    torch.nn.functional.dropout = lambda x, p=0.5, training=True, inplace=False: x
""",
    ),
    "learning_rate": (
        "",
        """
    import torch
    made = torch.optim.AdamW.__init__
    def init(self, params, lr=1e-3, **others):
        made(self, params, lr=1.1 * lr, **others)
    torch.optim.AdamW.__init__ = init
""",
    ),
    "fp16_without_scaler": (
        'CHANGES_NUMERICS = "precision"',
        """
    import torch
    linear = torch.nn.functional.linear
    torch.nn.functional.linear = lambda x, w, b=None: linear(x.half(), w.half(), b.half()).float()
""",
    ),
    "last_batch_dropped": (
        "",
        """
    from torch.utils.data import DataLoader
    made = DataLoader.__init__
    def init(self, *args, **others):
        made(self, *args, **{**others, "drop_last": True})
    DataLoader.__init__ = init
""",
    ),
    "biased_masks": (
        "CHANGES_RANDOM_STREAM = True",
        """
    import torch
    def dropout(x, p=0.5, training=True, inplace=False):
        return x * (torch.rand_like(x) >= 1.2 * p) / (1 - p) if training else x
    torch.nn.functional.dropout = dropout
""",
    ),
}


def remedy(folder, name, flags, body, saves):
    path = folder / f"{name}.py"
    path.write_text(f'"""{name}."""\nSAVES = {saves}\n{flags}\n\ndef harm():{body or " pass"}\n{PAUSE}')
    return path


def tuned(folder, own):
    (folder / "train.py").write_text(SCRIPT)
    settings = TuneSettings(budget_s=900.0, own=tuple(own), only=tuple(path.stem for path in own), quality_steps=30)
    command = [sys.executable, str(folder / "train.py")]
    with (
        tempfile.TemporaryDirectory(prefix="steptime-") as sessions,
        ScriptTrials(command=command, folder=Path(sessions), cores=2, warn=print) as trials,
    ):
        return tune(trials, settings, NoBooks(), say=print, measure_micro=lambda evidence: Micro())


def test_none_is_kept_and_the_harmless_one_is(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    harmful = [remedy(tmp_path, name, *harm, "(0.3, 0.8, 0.9)") for name, harm in HARMS.items()]
    harmless = remedy(tmp_path, "no_pause", "", "", "(0.3, 0.7, 0.9)")
    result = tuned(tmp_path, [*harmful, harmless])
    verdicts = {one.name: one.verdict for one in result.remedies if one.verdict != "not tried"}
    assert verdicts.pop("no_pause") == "kept"
    assert set(verdicts) == set(HARMS)
    assert set(verdicts.values()) <= {"rejected", "undecided"}
    # the pause of 20 ms is most of the step
    assert result.confirmation.gain.low > 1.5
