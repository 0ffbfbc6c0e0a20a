"""A trial that cannot be measured ends: nobody would stop it at its step."""

import pytest

from steptime.agent.ending import ABANDONED
from steptime.attach import SessionSpec

pytestmark = pytest.mark.spawned

BROKEN = """
    import os, shutil
    import torch
    ranks = os.path.join(os.environ["STEPTIME_SESSION"], "ranks")
    shutil.rmtree(ranks)
    open(ranks, "w").close()
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(5):
        (weight ** 2).sum().backward(); optimizer.step(); optimizer.zero_grad()
    print("trained on")
"""


def test_a_trial_ends_and_says_why(run_script, tmp_path):
    done = run_script(BROKEN, spec=SessionSpec(mode="trial", max_steps=3, redirect=tmp_path / "elsewhere"))
    assert (done.code, done.out) == (ABANDONED, "")
    (line,) = done.err.splitlines()
    assert line.startswith("steptime: the trial cannot be measured: ")


def test_a_script_that_is_only_explained_goes_on(run_script):
    done = run_script(BROKEN)
    assert (done.code, done.out, done.err) == (0, "trained on\n", "")
    (fault,) = done.record.dropped
    assert "nothing can be recorded" in fault
