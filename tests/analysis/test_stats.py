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
