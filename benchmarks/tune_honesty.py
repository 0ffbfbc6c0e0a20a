"""How often tune calls nothing a gain: real A/A duels of a tiny script against itself.

    python benchmarks/tune_honesty.py [--duels 40] [--json FILE] [--quick]

The claim: at most 5 % of duels are called faster. The peer in the same run is what a user would do without tune: time
each side once, 20 steps, and believe a difference of 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

from steptime.ledger import write_whole
from steptime.tune import ScriptTrials
from steptime.tune.duel import duel, needs_second
from steptime.tune.trials import Setup

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(512, 32); y = x @ torch.randn(32, 1)
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for i in range(0, 512, 64):
        optimizer.zero_grad()
        loss = (model(x[i : i + 64]) - y[i : i + 64]).square().mean()
        loss.backward()
        optimizer.step()
"""
DUELS_A_PROCESS = 5
"""Processes are started anew after so many duels: what a process got by chance (memory, core) is part of the test."""


def main() -> None:
    """Prints each duel and the count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--duels", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="10 duels")
    args = parser.parse_args()
    duels = 10 if args.quick else args.duels
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rng = random.Random(0)
    ratios: list[float] = []
    called = naive = 0
    with tempfile.TemporaryDirectory(prefix="steptime-") as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(SCRIPT)
        with ScriptTrials(command=[sys.executable, str(script)], folder=folder, cores=2, warn=print) as trials:
            sides = []
            for number in range(duels):
                if number % DUELS_A_PROCESS == 0:
                    for side in sides:
                        side.close()
                    sides = [trials.open(Setup()), trials.open(Setup())]
                found = duel(sides[0], sides[1], rng=rng, seconds_left=lambda: 60.0, block_s=0.08)
                once = [side.block(20) for side in sides]
                naive += once[0] / once[1] >= 1.01
                if needs_second(found):
                    for side in sides:
                        side.close()
                    sides = [trials.open(Setup()), trials.open(Setup())]
                    found = duel(sides[0], sides[1], rng=rng, seconds_left=lambda: 60.0, block_s=0.08)
                called += found.gain.decided == "faster"
                ratios.append(found.gain.ratio)
                gain = found.gain
                print(
                    f"{number + 1:3d}  {gain.ratio:.3f} ({gain.low:.3f} .. {gain.high:.3f})  {gain.decided}", flush=True
                )
            for side in sides:
                side.close()
    print(f"called faster: {called} of {duels} duels; timing each side once: {naive} of {duels}")
    if args.json:
        row = {
            "case": "A/A duels of a tiny script called faster",
            "ours": called / duels,
            "theirs": naive / duels,
            "peer": "each side timed once, a difference of 1 % believed",
            "unit": "share of duels",
            "ratio": called / naive if naive else None,
            "spread": [min(ratios), max(ratios)],
            "runs": duels,
        }
        write_whole(args.json, json.dumps([row], indent=1).encode())


if __name__ == "__main__":
    main()
