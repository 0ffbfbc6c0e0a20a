"""Times are parsed to the nanosecond; the oracle is exact decimal arithmetic."""

from decimal import Decimal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptime.timeline.microseconds import to_nanoseconds


def parse(*texts: str) -> list[int]:
    return to_nanoseconds([msgspec.Raw(text.encode()) for text in texts]).tolist()


def test_a_nanosecond_survives_an_absolute_time_that_a_float_cannot_hold():
    text = "1796069788367256.933"
    assert float(text) != Decimal(text)
    assert parse(text) == [1796069788367256933]


@given(st.lists(st.integers(0, 2**62), min_size=1))
def test_what_kineto_prints_of_nanoseconds_is_read_back(times_ns):
    """The format is libkineto's: microseconds, dot, three digits."""
    assert parse(*(f"{ns // 1000}.{ns % 1000:03}" for ns in times_ns)) == times_ns


@given(st.lists(st.integers(0, 2**52), min_size=1))
def test_integer_microseconds_of_older_traces(times_us):
    assert parse(*map(str, times_us)) == [us * 1000 for us in times_us]


@given(st.lists(st.decimals("-1e12", "1e12", allow_nan=False, places=3), min_size=1))
def test_mixed_and_negative_numbers(values):
    assert parse(*map(str, values)) == [int(value * 1000) for value in values]


def test_exponents_and_quoted_numbers():
    assert parse("1.5e3", '"12.25"', "7") == [1_500_000, 12_250, 7000]


def test_what_is_no_number_is_refused():
    for text in ('"later"', "{}", "null"):
        with pytest.raises(ValueError, match="not a time"):
            parse(text)
    with pytest.raises(ValueError, match="64 bits"):
        parse("1" * 30)


def test_nothing_gives_nothing():
    assert to_nanoseconds([]).dtype == np.int64
