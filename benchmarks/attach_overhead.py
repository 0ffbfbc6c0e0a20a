"""What measuring costs the script that is measured: the same loop with the agent and without, interleaved.

    python benchmarks/attach_overhead.py [--quick] [--json FILE]

The script runs under the agent, in its untraced window, and takes the agent's hooks off and puts them on again, block
by block: two processes of one script differ by 10 % for as long as they live, more than what is measured here. Fresh
processes repeat it. The step's length is set by arithmetic, not by sleeping: a step that computes shows what the agent
takes from it. Claim: without/with at least 0.98 for a 2 ms and for a 200 ms step. Also printed: the agent's cost a step
in microseconds, best seen on the shortest step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCRIPT = """
import sys, time
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x = torch.randn(32, 64)

def step(repeats):
    optimizer.zero_grad()
    h = x
    for _ in range(repeats):
        h = torch.tanh(model[0](h))
    model[1](h).mean().backward()
    optimizer.step()

for _ in range(20):
    step(1)
hooked = torch.Tensor.backward, torch.autograd.backward, torch.optim.SGD.step
bare = tuple(function.__wrapped__ for function in hooked)
for line in sys.stdin:
    repeats, count, attached = map(int, line.split())
    if not count:
        break
    torch.Tensor.backward, torch.autograd.backward, torch.optim.SGD.step = hooked if attached else bare
    step(repeats)
    began, worked = time.perf_counter(), time.process_time()
    for _ in range(count):
        step(repeats)
    worked, took = time.process_time() - worked, time.perf_counter() - began
    print(took / count, worked / count, flush=True)
"""


Process = subprocess.Popen[str]
Block = tuple[float, float]


def start(script: Path, session: Path) -> Process:
    """The script under the agent, in an untraced window that never ends: the phase that the claim is about."""
    from steptime.attach import SessionSpec, WindowSpec, agent_environment, write_session

    windows = WindowSpec(warmup_steps=1, untraced_steps=10**9)
    spec = SessionSpec(mode="explain", windows=windows, losses=False)
    write_session(spec, session)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **agent_environment(session, spec)}
    command = [sys.executable, str(script)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def ask(process: Process, repeats: int, count: int, *, attached: bool) -> Block:
    """Seconds a step, by the clock and of CPU, over a block of `count` steps of `repeats` layers."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{repeats} {count} {int(attached)}\n")
    process.stdin.flush()
    wall_s, cpu_s = map(float, process.stdout.readline().split())
    return wall_s, cpu_s


def layers_for(process: Process, target_s: float) -> int:
    """How many layers make a step of `target_s`."""
    few, many = (min(ask(process, repeats, 5, attached=False)[1] for _ in range(3)) for repeats in (1, 21))
    return max(1, round((target_s - few) * 20 / (many - few)))


def pairs_of(process: Process, target_s: float, block: int, pairs: int) -> list[tuple[Block, Block]]:
    """Interleaved blocks: (seconds a step by the clock, of CPU) without the agent's hooks, and with them."""
    repeats = layers_for(process, target_s)
    found: list[tuple[Block, Block]] = []
    for pair in range(pairs):
        # the order is turned round every time: whoever comes second meets a warmer cache
        first = ask(process, repeats, block, attached=bool(pair % 2))
        second = ask(process, repeats, block, attached=not pair % 2)
        found.append((second, first) if pair % 2 else (first, second))
    return found


def row(case: str, clock: int, rounds: list[list[tuple[Block, Block]]]) -> dict[str, Any]:
    """One line: medians of each pair of processes, and of those the median with their quartiles."""
    without_ms = [1e3 * statistics.median(a[clock] for a, _ in pairs) for pairs in rounds]
    with_ms = [1e3 * statistics.median(b[clock] for _, b in pairs) for pairs in rounds]
    ratios = [statistics.median(a[clock] / b[clock] for a, b in pairs) for pairs in rounds]
    added_us = [1e6 * statistics.median(b[clock] - a[clock] for a, b in pairs) for pairs in rounds]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "case": f"{case}, {('clock', 'CPU time')[clock]}",
        "ours": statistics.median(with_ms),
        "theirs": statistics.median(without_ms),
        "peer": "the same process without the agent's hooks",
        "unit": "ms",
        "ratio": statistics.median(ratios),
        "spread": [low, high],
        "runs": len(rounds),
        "added_us": statistics.median(added_us),
    }


def main() -> None:
    """Runs the cases and prints them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    parser.add_argument("--json", type=Path, help="where the rows go")
    arguments = parser.parse_args()
    count = 3 if arguments.quick else 10
    cases = {"shortest step": (0.0, 50, 20), "2 ms step": (0.002, 20, 20), "200 ms step": (0.2, 1, 12)}
    rounds: dict[str, list[list[tuple[Block, Block]]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "loop.py"
        script.write_text(SCRIPT)
        for number in range(count):
            print(f"\rprocess {number + 1} of {count}", end="", file=sys.stderr, flush=True)
            process = start(script, Path(folder) / f"session{number}")
            try:
                for case, size in cases.items():
                    rounds[case].append(pairs_of(process, *size))
            finally:
                process.communicate("0 0 0\n", timeout=30)
    print(file=sys.stderr)
    rows = [row(case, clock, found) for case, found in rounds.items() for clock in (0, 1)]
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{'':26s}{'without':>10s} {'with':>10s}   without/with (quartiles)     added a step")
    for one in rows:
        low, high = one["spread"]
        ratio = f"{one['ratio']:.3f} ({low:.3f} .. {high:.3f})"
        print(f"{one['case']:26s}{one['theirs']:7.3f} ms {one['ours']:7.3f} ms   {ratio:26s} {one['added_us']:8.1f} us")


if __name__ == "__main__":
    main()
