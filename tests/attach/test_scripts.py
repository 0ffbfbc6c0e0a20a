"""Unmodified scripts under the agent: what they print themselves is what the agent should have seen."""

import gzip
import json
import random
import sys
from collections import Counter

import numpy as np
import pytest

from steptime.agent.steps import AFTER, FLAG_SKIPPED, SCRIPTS_PROFILER, STACKS, TRACED, UNTRACED, WARM_UP
from steptime.attach import SessionSpec, WindowSpec

pytestmark = pytest.mark.spawned

PLAIN = """
    import sys, torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    def main():
        torch.manual_seed(0)
        x = torch.randn(64, 8)
        loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True, num_workers=1)
        model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.1), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(4):
            for a, b in loader:
                optimizer.zero_grad()
                loss = ((model(a) - b) ** 2).mean()
                loss.backward()
                optimizer.step()
                print(repr(loss.item()), flush=True)
        sys.exit(7)

    main()
"""


def test_plain_loop(run_script):
    done = run_script(
        PLAIN,
        spec=SessionSpec(
            windows=WindowSpec(warmup_steps=3, untraced_steps=4, traced_steps=0, stack_steps=0, untraced_ms=0)
        ),
    )
    printed = [float(line) for line in done.out.split()]
    assert done.code == 7
    assert done.err == ""
    (rank,) = done.record.ranks  # the DataLoader's workers left nothing
    assert len(rank.steps) == len(printed) == 32
    ((site, losses),) = rank.losses.items()
    assert site.endswith("train.py:16")
    np.testing.assert_array_equal(losses, printed)
    assert np.all(rank.steps.start_ns[1:] >= rank.steps.end_ns[:-1])
    assert rank.seeded is True
    assert rank.process["framework"] == "torch"
    assert done.record.dropped == []


LOOP = """
    import os, signal, sys, time, torch
    torch.manual_seed(3)
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    start = time.monotonic()
    step = 0
    while True:
        loss = (weight ** 2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.002)
        step += 1
        if len(sys.argv) > 1 and step == 20:
            exec(sys.argv[1])
"""


def test_windows_trace_and_stacks(run_script):
    """The schedule's order; the trace holds the traced steps by their numbers; the stacks name the script's line."""
    done = run_script(
        LOOP,
        spec=SessionSpec(
            windows=WindowSpec(
                warmup_steps=2, untraced_steps=4, traced_steps=3, stack_steps=3, untraced_ms=0, stacks_ms=100
            ),
            stop_after_windows=True,
        ),
    )
    assert done.code == 0
    assert done.err == ""
    (rank,) = done.record.ranks
    assert sorted(set(rank.steps.window.tolist())) == [WARM_UP, UNTRACED, TRACED, STACKS]
    assert np.all(np.diff(rank.steps.window) >= 0)
    assert len(rank.steps.durations_of(TRACED)) == 3
    assert rank.trace is not None
    assert rank.stacks is not None
    events = json.loads(gzip.decompress(rank.trace.read_bytes()))["traceEvents"]
    names = Counter(str(event.get("name")) for event in events)
    (traced,) = np.nonzero(rank.steps.window == TRACED)
    assert [names[f"steptime.step#{number}"] for number in traced[1:]] == [1, 1, 1]
    assert names["steptime.settle"] == 1
    assert names["steptime.backward"] == names["steptime.optimizer"] == 4
    spans = {e["name"]: e["dur"] for e in events if str(e.get("name")).startswith("steptime.step#")}
    for number in traced[1:]:
        mine_ms = (rank.steps.end_ns - rank.steps.start_ns)[number] / 1e6
        assert spans[f"steptime.step#{number}"] / 1e3 == pytest.approx(mine_ms, rel=0.3)
    heaviest = rank.stacks.read_text().splitlines()[0]
    assert "train.py:13" in heaviest  # the sleep


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("raise RuntimeError('mine')", 1),
        pytest.param("os._exit(3)", 3, marks=pytest.mark.slow),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
)
def test_what_was_measured_is_kept(run_script, ending, code):
    done = run_script(LOOP, ending)
    assert done.code == code
    (rank,) = done.record.ranks
    assert len(rank.steps) == 20
    if code == 1:
        assert done.err.rstrip().endswith("RuntimeError: mine")
        assert "steptime" not in done.err
        assert rank.events[-1]["event"] == "end"
    else:
        assert rank.seeded is None


def test_gan_accumulation_and_skipped_steps(run_script):
    """Two D steps a G step is one training step; a scaler's skipped step still is one; losses are unscaled."""
    done = run_script("""
        import torch
        d, g = (torch.nn.Parameter(torch.ones(2)) for _ in "dg")
        opt_d, opt_g = torch.optim.SGD([d], lr=0.01), torch.optim.Adam([g], lr=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for i in range(12):
            for _ in range(2):
                loss_d = (d * 2).sum()
                loss_d.backward()
                opt_d.step(); opt_d.zero_grad()
            for _ in range(2):
                loss_g = (g * 3).sum() if i != 9 else (g * float("inf")).sum()
                scaler.scale(loss_g).backward()
            scaler.step(opt_g); scaler.update(); opt_g.zero_grad()
            print(loss_d.item(), loss_g.item())
    """)
    assert done.code == 0, done.err
    (rank,) = done.record.ranks
    series = {int(site.rpartition(":")[2]): values for site, values in rank.losses.items()}
    assert sorted(series) == [9, 13]
    # the first D step stands alone: only then is it known that G belongs to the pattern
    assert len(rank.steps) == 12 + 2
    printed = np.array([[float(word) for word in line.split()] for line in done.out.splitlines()])
    np.testing.assert_allclose(series[13][2:], printed[:, 1], rtol=1e-6)
    assert np.flatnonzero(rank.steps.flags & FLAG_SKIPPED).tolist() == [9 + 2]


@pytest.mark.slow
def test_lbfgs_subclass_and_no_optimizer(run_script):
    """A closure's backward calls are one step; super().step() is one step; without an optimizer: what was seen."""
    done = run_script("""
        import torch
        class Mine(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)
        torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        w = torch.nn.Parameter(torch.ones(2))
        opt = Mine([w], lr=0.1)
        for _ in range(5):
            (w ** 2).sum().backward(); opt.step(); opt.zero_grad()
        lbfgs = torch.optim.LBFGS([w], max_iter=4)
        def closure():
            lbfgs.zero_grad(); loss = ((w - 3) ** 4).sum(); loss.backward(); return loss
        for _ in range(30):
            lbfgs.step(closure)
    """)
    assert done.code == 0, done.err
    (rank,) = done.record.ranks
    # until the agent learns that training moved on to LBFGS some of its steps are not told apart
    assert 5 + 30 - 14 <= len(rank.steps) <= 35
    bare = run_script("""
        import torch
        w = torch.nn.Parameter(torch.ones(2))
        for _ in range(5):
            (w ** 2).sum().backward()
            with torch.no_grad():
                w -= 0.1 * w.grad
    """)
    (rank,) = bare.record.ranks
    assert len(rank.steps) == 0
    assert rank.events_named("end")[0]["backward_calls"] == 5


PROFILED = """
    import torch
    w = torch.nn.Parameter(torch.ones(4))
    opt = torch.optim.SGD([w], lr=0.1)
    def steps(n):
        for _ in range(n):
            (w ** 2).sum().backward(); opt.step(); opt.zero_grad()
    steps(8)
    with torch.profiler.profile() as mine:
        steps(5)
    print(sum(e.count for e in mine.key_averages() if e.key == "Optimizer.step#SGD.step"))
    print(sum(e.count for e in mine.key_averages() if "steptime" in e.key))
    steps(2000)
"""


def test_the_scripts_own_profiler_comes_first(run_script):
    """Its profile starts inside our traced window: it sees its five steps whole, and ours is taken later."""
    done = run_script(
        PROFILED,
        spec=SessionSpec(
            windows=WindowSpec(
                warmup_steps=2, untraced_steps=3, traced_steps=30, stack_steps=3, untraced_ms=0, stacks_ms=100
            )
        ),
    )
    assert done.code == 0, done.err
    assert done.out.split() == ["5", "0"]
    (rank,) = done.record.ranks
    assert np.count_nonzero(rank.steps.window == SCRIPTS_PROFILER) == 5
    (dropped,) = rank.events_named("guest")
    assert "dropped" in dropped["what"]
    assert rank.trace is not None
    assert rank.steps.window[-1] in (AFTER, STACKS)


TRIAL = """
    import random, sys
    import numpy as np
    import torch
    from pathlib import Path
    random.seed(5); np.random.seed(5); torch.manual_seed(5)
    generator = torch.Generator().manual_seed(11) if False else torch.Generator()
    generator.manual_seed(11)
    print(random.random(), np.random.rand(), torch.rand(1).item(), np.random.default_rng(9).random(),
          torch.rand(1, generator=generator).item(), isinstance(torch.default_generator, torch.Generator), flush=True)
    w = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(w.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 4, 0.5)
    out = Path("run"); out.mkdir()
    for step in range(100):
        w(torch.ones(3, 2)).sum().backward()
        torch.nn.utils.clip_grad_norm_(w.parameters(), 1.5)
        opt.step(); schedule.step(); opt.zero_grad()
        torch.save(w.state_dict(), "run/last.pt")
        with open("run/log.txt", "a") as log:
            log.write("x")
        assert sorted(p.name for p in out.iterdir()) == ["last.pt", "log.txt"]
        torch.load("run/last.pt")
    print("never reached")
"""


def test_trial(run_script, tmp_path):
    """Every seed is offset, the process stops at the step asked for, and what it wrote lies elsewhere."""
    torch = pytest.importorskip("torch")
    spec = SessionSpec(mode="trial", seed_offset=7, max_steps=10, redirect=tmp_path / "elsewhere", audit=True)
    done = run_script(TRIAL, spec=spec)
    assert (done.code, done.err) == (0, "")
    random.seed(12)
    state = np.random.RandomState(12)
    want = [
        random.random(),
        state.rand(),
        torch.rand(1, generator=torch.Generator().manual_seed(12)).item(),
        np.random.default_rng(16).random(),
        torch.rand(1, generator=torch.Generator().manual_seed(18)).item(),
    ]
    assert [float(word) for word in done.out.split()[:5]] == want
    assert done.out.split()[5:] == ["True"]
    assert not (tmp_path / "run").exists()
    moved = tmp_path / "elsewhere" / str(tmp_path).lstrip("/") / "run"
    assert (moved / "log.txt").read_text() in ("x" * 9, "x" * 10)
    assert done.record.escaped == ()
    (rank,) = done.record.ranks
    assert len(rank.steps) == 10
    (optimizer,) = rank.audit["optimizers"]
    rates = [groups[0]["lr"] for groups in optimizer["settings"]["first"]]
    assert rates == [0.5, 0.25, 0.125]  # StepLR(4, 0.5) over ten steps
    assert (optimizer["parameters"], optimizer["elements"]) == (2, 3)
    assert rank.audit["clipping"] == {"calls": 10, "max_norms": [1.5]}


@pytest.mark.slow
def test_a_dropped_environment_is_named_and_the_import_line_helps(run_script):
    source = "import sys\nif len(sys.argv) > 1: import steptime.agent.here\n" + "\n".join(
        line[4:] for line in LOOP.splitlines()
    ).replace("exec(sys.argv[1])", "break").replace("len(sys.argv) > 1 and step == 20", "time.monotonic() - start > 3")
    missed = run_script(source, before=(sys.executable, "-E"))
    assert missed.record.ranks == ()
    (unattached,) = missed.record.unattached
    assert "train.py" in unattached.command
    assert "-E" in unattached.why
    helped = run_script(source, "here", before=(sys.executable, "-E"))
    assert len(helped.record.ranks) == 1
    assert helped.record.unattached == ()


def test_the_users_sitecustomize_still_runs(run_script, tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import builtins; builtins.theirs = __file__")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "theirs"))
    done = run_script(
        "import sys; print(theirs, any('inject' in p for p in sys.path), sys.modules['sitecustomize'].__file__)"
    )
    theirs = str(tmp_path / "theirs" / "sitecustomize.py")
    assert done.out.split() == [theirs, "False", theirs]
    assert done.record.ranks == ()


def test_the_users_own_remedies_run_after_the_plan(run_script, tmp_path):
    """`extra`: each file's `apply(report)` is called; what fails is reported, and the script goes on."""
    (tmp_path / "good.py").write_text(
        "import torch\ndef apply(report):\n    torch.set_num_threads(1)\n    report('mine', True, 'one thread')\n"
    )
    (tmp_path / "bad.py").write_text("def apply(report):\n    raise ValueError('no')\n")
    source = """
        import torch
        w = torch.nn.Parameter(torch.ones(4))
        opt = torch.optim.SGD([w], lr=0.1)
        for _ in range(8):
            (w ** 2).sum().backward(); opt.step(); opt.zero_grad()
        print(opt.defaults["foreach"], opt.defaults["fused"])
    """
    spec = SessionSpec(
        mode="run",
        plan={"optimizer": {"implementation": "fused"}},
        extra=(tmp_path / "good.py", tmp_path / "bad.py"),
    )
    done = run_script(source, spec=spec)
    assert done.code == 0, done.err
    assert done.out.split() == ["None", "True"]
    (rank,) = done.record.ranks
    assert [(e["name"], e["ok"]) for e in rank.applied] == [
        ("mine", True),
        ("bad.py", False),
        ("optimizer.implementation", True),
    ]


def test_an_unwritable_session_leaves_the_script_alone(run_script, tmp_path):
    """The folder vanishes under the running script: it ends as it would have, and says nothing of us."""
    done = run_script(
        LOOP.replace(
            "start = ",
            f"import shutil; shutil.rmtree({str(tmp_path / 's0' / 'ranks')!r}); "
            f"open({str(tmp_path / 's0' / 'ranks')!r}, 'w').close(); start = ",
        ),
        "sys.exit(4)",
    )
    assert (done.code, done.err) == (4, "")
    assert done.record.ranks == ()
    assert "nothing can be recorded" in done.record.dropped[0]
