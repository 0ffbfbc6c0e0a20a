"""The exclusive partition, held against a brute-force oracle that asks each nanosecond for its owner."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steptime.explain.sweep import Segments, overlay, own, parents

events = st.lists(st.tuples(st.integers(-5, 30), st.integers(0, 12), st.integers(0, 2)), max_size=12)


def arrays(found):
    starts = np.array([start for start, *_ in found], np.int64)
    return (
        starts,
        starts + np.array([length for _, length, _ in found], np.int64),
        np.array([rank for *_, rank in found], np.int64),
    )


@given(events, st.integers(-3, 10), st.integers(0, 25))
def test_every_nanosecond_has_the_owner_of_the_definition(found, first, length):
    starts, ends, ranks = arrays(found)
    segments = own(starts, ends, ranks, (first, first + length))
    assert segments.duration_ns.sum() == length
    for moment in range(first, first + length):
        running = [i for i in range(len(found)) if starts[i] <= moment < ends[i]]
        expected = max(running, key=lambda i: (ranks[i], starts[i], i), default=-1)
        assert segments.owner_at(np.array([moment]))[0] == expected


@given(events, events)
def test_an_overlay_cuts_and_keeps_both_owners(one, two):
    window = (-5, 45)
    a, b = own(*arrays(one), window), own(*arrays(two), window)
    cut, other = overlay(a, b)
    assert cut.duration_ns.sum() == 50
    np.testing.assert_array_equal(cut.owner, a.owner_at(cut.start_ns))
    np.testing.assert_array_equal(other, b.owner_at(cut.start_ns))
    for moment in range(-5, 45):
        piece = np.searchsorted(cut.start_ns, moment, side="right") - 1
        assert other[piece] == b.owner_at(np.array([moment]))[0]


def test_outside_of_the_window_nobody_owns():
    segments = own(np.array([0]), np.array([10]), np.array([0]), (2, 8))
    assert segments.owner_at(np.array([1, 2, 7, 8])).tolist() == [-1, 0, 0, -1]
    empty = Segments(start_ns=np.empty(0, np.int64), end_ns=np.empty(0, np.int64), owner=np.empty(0, np.int64))
    assert empty.owner_at(np.array([3])).tolist() == [-1]


def test_parents_are_the_innermost_enclosing_events_of_the_same_lane():
    starts, ends = np.array([0, 1, 2, 2, 6, 20]), np.array([10, 5, 4, 3, 7, 21])
    lane = np.array([0, 0, 0, 1, 0, 0], np.int32)
    assert parents(starts, ends, lane).tolist() == [-1, 0, 1, -1, 0, -1]
