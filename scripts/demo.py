"""make demo: tunes examples/ticks/train.py as it stands, then holds the result against the script tuned by hand.

    python scripts/demo.py [--json out/demo.json] [--report out/demo.html] [--ticks FILE] [--budget 330s]

The JSON is `steptime tune --json` with `expert_ratio` beside it: tuned step time / hand-tuned step time of interleaved
blocks (below 1 the tuned script is the faster one), and `predictions`: the errors of all predictions that were tried.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from steptime.errors import SteptimeError
from steptime.hardware import load_calibration, probe, save_calibration
from steptime.report import write_report
from steptime.tune import (
    Duel,
    ScriptTrials,
    Setup,
    TuneResult,
    TuneSettings,
    duel,
    seconds_of,
    tune_script,
    usable_cores,
)
from steptime.tune.render import print_result

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "ticks"
COMPARISON_S = 90.0


def expert_duel(tuned: TuneResult, command: Sequence[str], expert: Sequence[str], console: Console) -> Duel:
    """The hand-tuned script against the tuned one, in interleaved blocks; the ratio is hand-tuned / tuned time."""
    deadline = time.monotonic() + COMPARISON_S
    with ExitStack() as stack:
        sides = []
        for words, setup in ((expert, Setup()), (command, tuned.setup)):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="steptime-")))
            trials = ScriptTrials(command=words, folder=folder, cores=usable_cores(), warn=console.print)
            sides.append(stack.enter_context(trials).open(setup))
            stack.callback(sides[-1].close)
        return duel(
            sides[0],
            sides[1],
            rng=random.Random(0),
            seconds_left=lambda: deadline - time.monotonic(),
            settle=3,
            looks=(24,),
        )


def can_compile() -> bool:
    """Whether torch.compile can build its C++ here: it needs Python's headers."""
    return Path(sysconfig.get_path("include"), "Python.h").is_file()


def main() -> int:
    """Runs the demo; the exit code is 0 when it ran to its end, whatever it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("out/demo.json"))
    parser.add_argument("--report", type=Path, default=Path("out/demo.html"))
    parser.add_argument("--ticks", help="CSV of DateTime,Price,Volume (default: mlfinpy's)")
    parser.add_argument("--budget", default="330s")
    arguments = parser.parse_args()
    console = Console(stderr=True)
    for path in (arguments.json, arguments.report):
        path.parent.mkdir(parents=True, exist_ok=True)
    plan = arguments.json.with_suffix(".plan.toml")
    data = ["--ticks", arguments.ticks] if arguments.ticks else []
    command = [sys.executable, str(EXAMPLES / "train.py"), *data]
    expert = [sys.executable, str(EXAMPLES / "train_expert.py"), *data]
    if not can_compile():
        expert.append("--no-compile")

    begun = time.monotonic()
    if load_calibration() is None:
        console.print("[dim]probing this machine[/dim]")
        save_calibration(probe(quick=True))

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - begun:4.0f} s  {line}[/dim]", highlight=False)

    tuned = tune_script(command, TuneSettings(budget_s=seconds_of(arguments.budget)), plan_out=plan, say=say)
    tuned_s = time.monotonic() - begun
    say("holding the tuned script against the one tuned by hand")
    against = expert_duel(tuned, command, expert, console)

    result = tuned.to_json()
    gain = against.gain
    result |= {
        "expert_ratio": 1 / gain.ratio,
        "expert": {
            "ratio": 1 / gain.ratio,
            "low": 1 / gain.high,
            "high": 1 / gain.low,
            "expert_s": against.baseline_s,
            "tuned_s": against.candidate_s,
            "compiled": can_compile(),
        },
        "tuning_s": tuned_s,
    }
    temporary = arguments.json.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1))
    os.replace(temporary, arguments.json)
    write_report(arguments.report, result["explanation"], result)

    out = Console()
    print_result(tuned, out, plan_path=str(plan))
    out.print(
        f"against the script tuned by hand: {1e3 * against.candidate_s:.1f} ms / {1e3 * against.baseline_s:.1f} ms = "
        f"{1 / gain.ratio:.2f} ({1 / gain.high:.2f} .. {1 / gain.low:.2f})"
    )
    out.print(f"tuned in {tuned_s:.0f} s; {arguments.json}, {arguments.report}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SteptimeError as error:
        print(f"steptime: {error}", file=sys.stderr)
        sys.exit(2)
