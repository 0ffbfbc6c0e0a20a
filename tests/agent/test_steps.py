"""The step's boundary over patterns of optimizers, and the log that outlives its process."""

import struct

import numpy as np
import pytest

from steptime.agent.steps import FIRST_CAPACITY, HEADER_BYTES, StepLog, StepPattern
from steptime.attach.record import _read_steps


class Optimizer:
    """Anything that can be weakly referenced."""


def boundaries(pattern: str, periods: int) -> list[int]:
    """Indices into the repeated pattern at which a training step ends."""
    optimizers = {letter: Optimizer() for letter in sorted(set(pattern))}
    steps = StepPattern()
    return [i for i, letter in enumerate(pattern * periods) if steps.closes(optimizers[letter])]


@pytest.mark.parametrize(
    ("pattern", "last"),
    [("a", 0), ("dg", 1), ("ddg", 2), ("dddddg", 5), ("dgg", 0), ("abc", 2), ("".join(map(chr, range(65, 165))), 99)],
)
def test_one_boundary_a_period(pattern, last):
    """After the first two periods: the least frequent optimizer ends the step, of equal ones the last."""
    found = boundaries(pattern, 12)
    late = [i for i in found if i >= 2 * len(pattern)]
    assert late == [k * len(pattern) + last for k in range(2, 12)]


def test_training_moves_on_to_another_optimizer():
    first, second = Optimizer(), Optimizer()
    steps = StepPattern()
    assert all(steps.closes(first) for _ in range(100))
    closed = [steps.closes(second) for _ in range(100)]
    assert all(closed[16:])
    assert sum(closed) >= 84


def test_log_grows_and_reads_back(tmp_path):
    log = StepLog(str(tmp_path / "steps.bin"))
    count = FIRST_CAPACITY + 10
    for i in range(count):
        log.append(i, i + 5, i % 4, i % 3)
    dropped: list[str] = []
    table = _read_steps(tmp_path / "steps.bin", dropped)
    assert dropped == []
    np.testing.assert_array_equal(table.start_ns, np.arange(count))
    np.testing.assert_array_equal(table.duration_ns, np.full(count, 5))
    np.testing.assert_array_equal(table.window, np.arange(count) % 4)
    # the layout as ARCHITECTURE.md describes it, read by hand
    raw = (tmp_path / "steps.bin").read_bytes()
    assert struct.unpack_from("<4q", raw, HEADER_BYTES + 7 * 32) == (7, 12, 3, 1)


def test_cut_off_log_is_salvaged(tmp_path):
    log = StepLog(str(tmp_path / "steps.bin"))
    for i in range(10):
        log.append(i, i + 1, 1, 0)
    cut = tmp_path / "0-1"
    cut.mkdir()
    (cut / "steps.bin").write_bytes((tmp_path / "steps.bin").read_bytes()[: HEADER_BYTES + 4 * 32 + 5])
    dropped: list[str] = []
    assert len(_read_steps(cut / "steps.bin", dropped)) == 4
    assert dropped == ["0-1: 6 of 10 steps are cut off from steps.bin"]
