"""Windows: their order and lengths, and that ranks change at the same step."""

import pytest

from steptime.agent.schedule import Schedule
from steptime.agent.session import Windows
from steptime.agent.steps import AFTER, STACKS, TRACED, UNTRACED, WARM_UP

WINDOWS = Windows(warmup_steps=2, untraced_steps=3, traced_steps=2, stack_steps=1, untraced_ms=0, stacks_ms=0)
MS = 1_000_000


def make(windows=WINDOWS, *, tracing=True, folder="", rank=0, world_size=1):
    return Schedule(windows, tracing=tracing, folder=str(folder), rank=rank, world_size=world_size)


def windows_of(schedule: Schedule, steps: int, step_ms: int = 1) -> list[int]:
    """The window of each step, as the recorder would log it."""
    now, seen = schedule._since_ns, []
    for _ in range(steps):
        seen.append(schedule.window)
        now += step_ms * MS
        schedule.after_step(now)
    return seen


def test_order_and_lengths():
    want = [WARM_UP] * 2 + [UNTRACED] * 3 + [TRACED] * 3 + [STACKS] + [AFTER] * 3
    schedule = make()
    assert windows_of(schedule, 12) == want
    assert schedule.over


def test_windows_stretch_to_their_least_time():
    windows = Windows(warmup_steps=1, untraced_steps=3, traced_steps=1, stack_steps=1, untraced_ms=100, stacks_ms=0)
    assert windows_of(make(windows), 400, step_ms=2).count(UNTRACED) == 50
    assert windows_of(make(windows), 400, step_ms=200).count(UNTRACED) == 3


@pytest.mark.parametrize(("tracing", "warmup", "want"), [(False, 2, [0, 0, 1, 1, 1]), (False, 0, [1] * 5)])
def test_trials_are_only_timed(tracing, warmup, want):
    windows = Windows(warmup_steps=warmup, untraced_steps=1)
    assert windows_of(make(windows, tracing=tracing), 5) == want


def test_spoilt_trace_is_taken_again():
    schedule = make()
    assert windows_of(schedule, 6)[-1] == TRACED
    schedule.repeat()
    assert windows_of(schedule, 8) == [UNTRACED] * 3 + [TRACED] * 3 + [STACKS] + [AFTER]


def test_trace_on_demand_goes_back_to_where_it_was():
    schedule = make(Windows(warmup_steps=0, untraced_steps=1), tracing=False)
    windows_of(schedule, 5)
    assert schedule.idle
    schedule.trace_now(2)
    assert windows_of(schedule, 6) == [TRACED] * 3 + [UNTRACED] * 3


@pytest.mark.parametrize("follower_is_ahead", [False, True])
def test_ranks_change_at_the_same_step(tmp_path, follower_is_ahead):
    """Rank 0's clock decides; the others, within one step of it, follow at the same step."""
    windows = Windows(warmup_steps=1, untraced_steps=3, traced_steps=2, stack_steps=2, untraced_ms=50, stacks_ms=20)
    ranks = [make(windows, folder=tmp_path, rank=rank, world_size=2) for rank in (0, 1)]
    nows = [rank._since_ns for rank in ranks]
    seen: list[list[int]] = [[], []]
    order = (1, 0) if follower_is_ahead else (0, 1)
    for _ in range(60):
        for number in order:
            seen[number].append(ranks[number].window)
            nows[number] += (2 + 5 * number) * MS  # the follower's own clock would have decided otherwise
            ranks[number].after_step(nows[number])
    assert seen[0] == seen[1]
    assert seen[0].count(TRACED) == 3
    assert seen[0][-1] == AFTER
