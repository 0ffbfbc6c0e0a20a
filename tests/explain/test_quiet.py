"""Whether others were at the machine is said in front of everything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptime.explain import Explanation, look_for_others, quiet, with_note


@pytest.mark.parametrize(("share", "said"), [(0.0, False), (0.05, False), (0.6, True)])
def test_it_is_said_from_a_tenth_of_the_cpus_on(monkeypatch, share, said):
    monkeypatch.setattr(quiet, "others_busy", lambda cpus: share)
    note = look_for_others()
    assert bool(note) == said
    if said:
        assert "60%" in note
        assert "quiet machine" in note


@pytest.mark.spawned
def test_a_process_that_spins_is_seen():
    count = len(os.sched_getaffinity(0))
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        assert "busy" in look_for_others()
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def test_the_note_stands_first_and_an_empty_one_is_none():
    sample = Path(__file__).parent / "data" / "ticks_explanation.json"
    before = Explanation.from_json(json.loads(sample.read_text()))
    assert with_note(before, "") is before
    after = with_note(before, "others were busy")
    assert after.notes == ("others were busy", *before.notes)
    assert after.to_json()["notes"][0] == "others were busy"
