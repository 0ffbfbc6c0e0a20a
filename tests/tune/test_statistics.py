"""The statistics against closed forms, textbook tables and simulated truths."""

import math

import numpy as np
import pytest
from scipy import stats

from steptime.tune.statistics import (
    alpha_each,
    judge,
    seeds_needed,
    tost,
    tost_power,
    trimmed_interval,
    within,
)


def test_without_trimming_the_interval_is_students():
    x = np.array([0.1, -0.2, 0.3, 0.0, 0.15, -0.1])
    found = trimmed_interval(x, alpha=0.05, trim=0.0)
    low, high = stats.t.interval(0.95, len(x) - 1, loc=x.mean(), scale=stats.sem(x))
    # this sample's lag-1 correlation is negative, so no inflation enters
    assert (found.point, found.low, found.high) == pytest.approx((x.mean(), low, high))


def test_the_point_is_scipys_trimmed_mean():
    x = np.random.default_rng(0).standard_t(2, size=23)
    assert trimmed_interval(x, alpha=0.05).point == pytest.approx(stats.trim_mean(x, 0.2))


def _white(rng, n):
    return rng.normal(0, 0.05, n)


def _heavy(rng, n):
    # half a percent of noise with bursts of a hundred times that, as on a machine that others use
    return rng.standard_t(1.5, n) * 0.02


def _paired(rng, seconds):
    """Pairs of consecutive blocks in random order: what a duel makes of the machine's state over time."""
    first = rng.random(len(seconds) // 2) < 0.5
    a = np.where(first, seconds[::2], seconds[1::2])
    b = np.where(first, seconds[1::2], seconds[::2])
    return a - b


def _autocorrelated(rng, n):
    seconds = np.empty(2 * n)
    seconds[0] = rng.normal(0, 0.1)
    for i in range(1, 2 * n):
        seconds[i] = 0.8 * seconds[i - 1] + rng.normal(0, 0.06)
    return _paired(rng, seconds)


def _drifting(rng, n):
    # both sides slow down by 30 % over the duel
    return _paired(rng, np.linspace(0.0, 0.3, 2 * n) + rng.normal(0, 0.03, 2 * n))


@pytest.mark.parametrize("noise", [_white, _heavy, _autocorrelated, _drifting])
def test_nothing_changed_is_called_faster_in_at_most_5_percent_of_duels(noise):
    rng = np.random.default_rng(1)
    looks, duels, called = (8, 14, 24), 1500, 0
    for _ in range(duels):
        x = noise(rng, looks[-1])
        for look in looks:
            decided = judge(x[:look], alpha=alpha_each(0.05, remedies=1, looks=len(looks))).decided
            if decided != "open":
                called += decided == "faster"
                break
    assert called <= 0.05 * duels


def test_a_gain_of_five_percent_under_two_percent_noise_is_found():
    rng = np.random.default_rng(2)
    found = sum(judge(math.log(1.05) + rng.normal(0, 0.02, 14), alpha=0.05 / 3).decided == "faster" for _ in range(200))
    assert found >= 190


def test_a_gain_below_one_percent_is_not_a_gain_however_sure():
    assert judge([0.005 + 1e-6 * i for i in range(12)], alpha=0.01).decided == "not faster"


def test_a_loss_is_not_a_gain():
    assert judge([-0.2, -0.21, -0.19, -0.2, -0.22, -0.2, -0.18, -0.2], alpha=0.01).decided == "not faster"


def test_tost_agrees_with_two_t_tests():
    d = np.array([0.02, -0.01, 0.03, 0.0, 0.01, 0.005])
    lower = stats.ttest_1samp(d, -0.05, alternative="greater").pvalue
    upper = stats.ttest_1samp(d, 0.05, alternative="less").pvalue
    found = tost(d, margin=0.05)
    assert found.p_value == pytest.approx(max(lower, upper))
    assert found.verdict == "equivalent"


def test_a_shift_beyond_the_margin_is_different_and_a_wide_spread_undecided():
    assert tost([0.3, 0.31, 0.29, 0.3, 0.32], margin=0.1).verdict == "different"
    assert tost([0.3, -0.31, 0.29, -0.3, 0.1], margin=0.1).verdict == "undecided"


def test_power_is_what_a_simulation_counts():
    rng = np.random.default_rng(3)
    n, spread, margin = 8, 1.0, 1.2
    counted = np.mean([tost(rng.normal(0, spread, n), margin=margin).verdict == "equivalent" for _ in range(2000)])
    assert tost_power(n, spread=spread, margin=margin) == pytest.approx(counted, abs=0.035)


def test_the_published_seed_counts():
    # normal approximation n = 10.8 s^2 / d^2 (Schuirmann; power .9, alpha .05): 10.8 * 4 = 43 pairs for d = s / 2
    assert seeds_needed(1.0, margin=0.5, least=5, most=100) == pytest.approx(43, abs=4)
    assert seeds_needed(0.01, margin=0.5, least=5, most=100) == 5


def test_choosing_n_from_the_first_seeds_keeps_the_error_of_a_difference_at_the_margin():
    rng = np.random.default_rng(4)
    margin, wrong, tries = 1.0, 0, 1500
    for _ in range(tries):
        d = rng.normal(margin, 1.0, 16)
        n = seeds_needed(float(d[:5].std(ddof=1)), margin=margin, least=5, most=16)
        wrong += tost(d[:n], margin=margin).verdict == "equivalent"
    assert wrong / tries <= 0.05 + 0.015


def test_losses_agree_within_rounding_only():
    assert within(0.693147, 0.693148, relative=1e-5)
    assert not within(0.693147, 0.69320, relative=1e-5)
    assert not within(math.nan, 0.7, relative=1.0)
