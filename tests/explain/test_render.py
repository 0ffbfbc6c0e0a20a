"""The terminal's view: the sentence first, 80 columns, no number that the record does not have."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from steptime.explain import Explanation, render
from steptime.explain.stacks import hottest_lines
from steptime.explain.verdict import duration

SAMPLE = Path(__file__).parent / "data" / "ticks_explanation.json"


def shown(explanation: Explanation) -> list[str]:
    out = io.StringIO()
    render(explanation, Console(file=out, width=80, force_terminal=False))
    return out.getvalue().splitlines()


@pytest.fixture
def explanation() -> Explanation:
    return Explanation.from_json(json.loads(SAMPLE.read_text()))


def test_the_sentence_comes_first_and_nothing_is_wider_than_the_terminal(explanation):
    lines = shown(explanation)
    assert explanation.verdict.startswith(lines[0].strip())
    assert max(map(len, lines)) <= 80
    assert len(lines) < 60


def test_what_is_not_known_is_said(explanation):
    text = " ".join(shown(explanation))
    assert "steptime probe" in text
    assert f"median of {explanation.step.n} untraced steps" in text


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1000, "1.00 us"), (840_000, "840 us"), (118_400_000, "118 ms"),
     (999_960_000, "1.00 s"), (99_960_000, "100 ms"), (12_340_000, "12.3 ms"), (2_345_000_000, "2.35 s")],
)  # fmt: skip
def test_durations_have_three_digits(ns, text):
    assert duration(ns) == text


def test_the_hottest_lines_are_the_users_own(tmp_path):
    path = tmp_path / "stacks.txt"
    path.write_text(
        "main (/home/u/train.py:12);forward (/x/site-packages/torch/nn/linear.py:5) 30\n"
        "main (/home/u/train.py:12);load (/home/u/data.py:3) 60\n"
        "run (/usr/lib/python3.11/runpy.py:1) 10\nbroken line\n"
    )
    assert hottest_lines(path) == (("data.py:3 load", 0.6), ("train.py:12 main", 0.3), ("runpy.py:1 run", 0.1))
    assert hottest_lines(tmp_path / "none") == ()


def test_the_line_below_the_loader(tmp_path):
    path = tmp_path / "stacks.txt"
    path.write_text(
        "main (/u/train.py:12);__next__ (/x/torch/utils/data/dataloader.py:7);__getitem__ (/u/set.py:4) 30\n"
        "main (/u/train.py:12) 70\n"
    )
    assert hottest_lines(path, below="torch/utils/data") == (("set.py:4 __getitem__", 0.3),)
