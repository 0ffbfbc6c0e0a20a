"""The overhead correction: what it promises, and that it undoes an inflation of its own model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steptime.explain.correct import correct, most_per_event_ns, round_to_sum

cells = st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 2000)), min_size=1, max_size=12)
steps = st.lists(st.integers(1, 10**9), min_size=1, max_size=30)


@settings(deadline=None)
@given(cells.filter(lambda found: sum(ns for ns, _ in found) > 0), steps)
def test_it_sums_to_the_untraced_median_and_intervals_contain_the_point(found, untraced):
    traced = np.array([ns for ns, _ in found], np.float64)
    events = np.array([count for _, count in found], np.float64)
    corrected = correct(traced, events, np.array(untraced, np.int64))
    assert corrected.ns.sum() == corrected.median_ns == round(float(np.median(untraced)))
    assert (corrected.low_ns <= corrected.ns).all()
    assert (corrected.ns <= corrected.high_ns).all()
    assert (corrected.ns >= 0).all()
    assert corrected.per_event_ns >= 0
    assert corrected.step_low_ns <= corrected.median_ns <= corrected.step_high_ns


def test_an_inflation_of_its_own_model_is_undone():
    true = np.array([50e6, 30e6, 20e6])
    events = np.array([1000.0, 0.0, 4000.0])
    corrected = correct(true + 2000 * events, events, np.full(20, 100_000_000))
    assert corrected.per_event_ns == pytest.approx(2000)
    np.testing.assert_allclose(corrected.ns, true, atol=1)


def test_a_traced_step_that_is_faster_is_only_scaled():
    corrected = correct(np.array([30.0, 10.0]) * 1e6, np.array([100.0, 0.0]), np.full(5, 80_000_000))
    assert corrected.per_event_ns == 0
    assert corrected.ns.tolist() == [60_000_000, 20_000_000]


def test_the_interval_spans_both_ways_to_share_out_the_inflation():
    """A cell without events keeps its time when the cost is by events, and loses its share when it is by time."""
    corrected = correct(np.array([50e6, 100e6]), np.array([0.0, 10_000.0]), np.full(9, 120_000_000))
    assert corrected.ns[0] == 50_000_000
    assert corrected.low_ns[0] == 40_000_000


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_rounding_stays_within_one(values):
    array = np.array(values)
    total = round(float(array.sum()))
    rounded = round_to_sum(array, total)
    assert rounded.sum() == total
    assert (np.abs(rounded - array) <= 1.001).all()


def test_nothing_to_correct_is_an_error():
    with pytest.raises(ValueError, match="untraced"):
        correct(np.array([1.0]), np.array([1.0]), np.array([], np.int64))


def test_a_machine_that_was_slow_while_tracing_takes_no_cell_away():
    """True times x 1.2, and 2 us an event: the bound keeps the slowness from being charged to the loop of short ops."""
    true, events = np.array([90e6, 10e6]), np.array([100.0, 1000.0])
    traced = 1.2 * (true + 2000 * events)
    untraced = np.full(9, 100_000_000)
    unbounded = correct(traced, events, untraced, most_ns=np.inf)
    assert unbounded.per_event_ns > 15_000
    assert unbounded.ns[1] < 0.1 * true[1]
    bounded = correct(traced, events, untraced, most_ns=most_per_event_ns(1200.0))
    assert bounded.per_event_ns == 2400
    assert bounded.ns[1] == pytest.approx(10e6, rel=0.05)
