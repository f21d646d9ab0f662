"""Estimates and verdicts."""

import math

import numpy as np
import pytest
from scipy import stats

from oelm.analysis.stats import Estimate, estimate, verdict


def test_the_interval_is_students() -> None:
    values = [1.0, 1.2, 0.9, 1.4]
    result = estimate(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (result.mean, result.low, result.high) == pytest.approx((1.125, low, high))


def test_one_seed_has_no_interval() -> None:
    assert estimate([2.0]) == Estimate(2.0, None, None)


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ((1.01, 1.00, 1.02), "met"),
        ((1.03, 1.01, 1.06), "undecided"),
        ((1.10, 1.08, 1.12), "not met"),
        ((1.0,), "one seed only"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(ratios: tuple[float, ...], word: str) -> None:
    gap = Estimate(math.log(ratios[0]), *(map(math.log, ratios[1:]) if len(ratios) > 1 else (None, None)))
    assert verdict(gap, 1.05) == word


def test_a_gap_exactly_on_the_criterion_is_called_met_as_seldom_as_promised() -> None:
    """Simulated studies with a known truth: half of the 5 % that an interval errs lies on either side.

    Each has five seeds; what a seed does to both of its runs is ten times what it does to their difference.
    """
    chance = np.random.default_rng(0)
    of_the_seed = chance.normal(3.0, 0.2, size=(4000, 5))
    baselines = of_the_seed + chance.normal(0, 0.014, size=(4000, 5))
    variants = of_the_seed + math.log(1.05) + chance.normal(0, 0.014, size=(4000, 5))
    words = [verdict(estimate(list(gaps)), 1.05) for gaps in variants - baselines]
    assert 0.015 <= words.count("met") / 4000 <= 0.035
    assert 0.015 <= words.count("not met") / 4000 <= 0.035


@pytest.mark.parametrize(("truth", "word"), [(1.0, "met"), (1.10, "not met")])
def test_a_gap_far_from_the_criterion_is_judged_right(truth: float, word: str) -> None:
    draws = np.random.default_rng(1).normal(math.log(truth), 0.01, size=(400, 5))
    assert sum(verdict(estimate(list(gaps)), 1.05) == word for gaps in draws) > 380


def test_the_chance_is_that_of_a_t_test() -> None:
    values = [0.01, 0.03, 0.02, 0.05]
    assert estimate(values).chance == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    assert estimate([0.02, 0.02]) == Estimate(0.02, 0.02, 0.02, 0.0)
