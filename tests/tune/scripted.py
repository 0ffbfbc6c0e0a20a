"""A synthetic script behind the `Trials` interface: known step times, known losses, a clock of its own."""

import random
from dataclasses import dataclass, field

import numpy as np

from steptime.explain import Breakdown, Cell, CorrectedCell, Explanation, Facts, Gap, OpRow, StepTime
from steptime.tune.trials import Explained, Setup, Side, Trained

MS = 1_000_000


def op(name, ms, *, shapes=((64, 50, 64),), group="random", phase="forward", calls=1.0, caller="", nbytes=None):
    return OpRow(
        name=name,
        caller=caller or name,
        group=group,
        phase=phase,
        resource="compute",
        shapes=shapes,
        dtype="float",
        calls_per_step=calls,
        self_ns=int(ms * MS),
        low_ns=int(ms * MS),
        high_ns=int(ms * MS),
        traced_self_ns=int(ms * MS),
        flops=None,
        bytes=nbytes,
        module="",
        source="",
    )


def gap(cause, ms, *, phase="data"):
    ns = int(ms * MS)
    return Gap(cause=cause, phase=phase, ns=ns, low_ns=ns, high_ns=ns, calls_per_step=1.0, source="train.py:1")


def explanation(ops, gaps=(), *, facts=None):
    cells = [(row.resource, row.group, row.phase, row.self_ns) for row in ops]
    cells += [("idle", one.cause, one.phase, one.ns) for one in gaps]
    total = sum(ns for *_, ns in cells)
    return Explanation(
        step=StepTime(median_ns=total, low_ns=total, high_ns=total, n=30, measured="untraced"),
        traced_step_ns=total,
        inflation=1.0,
        breakdown=Breakdown(
            total_ns=total,
            steps=1,
            cells=tuple(Cell(resource=r, group=g, phase=p, ns=ns) for r, g, p, ns in cells),
            window="trace",
        ),
        corrected=tuple(
            CorrectedCell(resource=r, group=g, phase=p, ns=ns, low_ns=ns, high_ns=ns, events=1.0)
            for r, g, p, ns in cells
        ),
        ops=tuple(ops),
        gaps=tuple(gaps),
        utilisation=(),
        mfu=None,
        ranks=(),
        facts=facts or Facts(device="cpu", threads=2),
        verdict="",
    )


TRANSFORMER = explanation(
    [
        op("aten::bernoulli_", 40, calls=6.0),
        op("aten::mul", 4, group="elementwise", shapes=((64, 50, 64), (64, 50, 64)), calls=6.0),
        op("aten::div_", 3, group="elementwise", calls=6.0),
        op("aten::mm", 20, group="matmul", shapes=((3200, 64), (64, 64)), calls=30.0),
        op("aten::add_", 8, group="optimizer", phase="optimizer", shapes=((64, 64),), calls=300.0),
    ],
    [gap("data", 15), gap("python", 10, phase="forward")],
)


@dataclass
class Script:
    """What the script does under a setup. `gains`: dotted field or file name -> factor on the step time.
    `pace`: factor on all step times after the explanation."""

    gains: dict = field(default_factory=dict)
    shifts: dict = field(default_factory=dict)
    refusals: dict = field(default_factory=dict)
    audits: dict = field(default_factory=dict)
    noise: float = 0.02
    pace: float = 1.0
    pair_noise: float = 0.001
    seeded: bool = True
    explanation: Explanation = TRANSFORMER
    seed: int = 0
    now: float = 0.0
    opened: int = 0
    closed: int = 0
    trained: list = field(default_factory=list)

    def __post_init__(self):
        self.rng = random.Random(self.seed)

    def clock(self):
        return self.now

    def explain(self, setup=None):
        self.now += 10
        return Explained(explanation=self.explanation, start_s=3.0, cores=2)

    def open(self, setup):
        self.now += 3
        self.opened += 1
        return _Side(self, setup)

    def train(self, setup, seed_offsets, steps):
        self.now += 4 * len(seed_offsets)
        self.trained += list(seed_offsets)
        return [self._run(setup, offset, steps) for offset in seed_offsets]

    def _run(self, setup, offset, steps):
        names = changes(setup)
        drawn = np.random.default_rng(offset if self.seeded else self.rng.randrange(2**32))
        level = 1.0 + 0.1 * drawn.standard_normal()
        shift = sum(self.shifts.get(name, 0.0) for name in names)
        if names:
            shift += self.pair_noise * np.random.default_rng([offset, len(names)]).standard_normal()
        losses = level * np.exp(-np.arange(steps) / steps)
        losses[1:] += shift
        audit = {"event": "audit", "optimizers": [{"settings": {"lr": 0.1}}]}
        for name in names:
            audit |= self.audits.get(name, {})
        return Trained(losses={"train.py:9": losses}, audit=audit, seeded=self.seeded)


def changes(setup: Setup):
    return [
        *setup.plan.difference(),
        *(path.name for path in setup.extra if path.name not in ("masks.py", "gradients.py")),
    ]


@dataclass
class _Side(Side):
    script: Script
    setup: Setup

    def block(self, steps, *, settle=1):
        step_s = self.script.pace * self.script.explanation.step.median_ns / 1e9
        for name in changes(self.setup):
            step_s *= self.script.gains.get(name, 1.0)
        self.script.now += step_s * (steps + settle)
        return step_s * (1 + self.script.noise * self.script.rng.gauss(0, 1))

    def compile_s(self):
        return 12.0 if "compiler.mode" in changes(self.setup) else 0.0

    def refused(self):
        return "; ".join(self.script.refusals[name] for name in changes(self.setup) if name in self.script.refusals)

    def close(self):
        self.script.closed += 1
