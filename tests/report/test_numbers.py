from __future__ import annotations

import pytest

from steptime.report import numbers


def said(text: str) -> str:
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (118_203_441, "118 ms"),
        (4_210_000, "4.21 ms"),
        (812_000, "812 µs"),
        (3_200_000_000, "3.20 s"),
        (25, "25.0 ns"),
        (999_960, "1.00 ms"),
        (1_240_000_000_000, "1,240 s"),
        (0, "0 ms"),
        (-3_100_000, "−3.10 ms"),
        (None, "–"),
    ],
)
def test_a_duration_has_three_digits_and_the_unit_that_suits_it(ns, text):
    assert said(numbers.duration(ns)) == text


def test_an_interval_stands_in_the_unit_and_decimals_of_its_centre():
    assert said(numbers.duration_interval(51_200_000, 49_000_000, 53_080_000)) == "51.2 ms [49.0, 53.1]"
    assert said(numbers.duration_interval(920_000, 500_000, 1_300_000)) == "920 µs [500, 1,300]"
    assert said(numbers.duration_interval(0, -2_000_000, 2_000_000)) == "0 ms [−2.00, 2.00]"
    assert said(numbers.ratio_interval(2.871, 2.79, 2.949)) == "2.87× [2.79, 2.95]"


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.4321, "43%"),
        (0.0432, "4.3%"),
        (0.0996, "10%"),
        (0.0004, "< 0.1%"),
        (0.0, "0%"),
        (None, "–"),
        (-0.031, "−3.1%"),
    ],
)
def test_a_share_has_no_false_digits(fraction, text):
    assert said(numbers.percent(fraction)) == text


def test_rates_are_decimal():
    assert said(numbers.si(1.24e12, "FLOP/s")) == "1.24 TFLOP/s"
    assert said(numbers.si(18_300_000_000, "B/s")) == "18.3 GB/s"
    assert said(numbers.si(512, "B")) == "512 B"


def test_sums_are_shown_to_the_last_nanosecond():
    assert numbers.nanoseconds(51_203_112) == "51,203,112"


def test_a_share_of_nothing_is_not_a_number():
    assert numbers.share(5, 0) == numbers.MISSING


def test_a_remark_becomes_a_sentence():
    assert numbers.sentence("no recurrent ops in the step") == "No recurrent ops in the step."
    assert numbers.sentence("Done.") == "Done."
    assert numbers.sentence(" ") == ""
