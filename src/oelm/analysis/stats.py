"""Gaps between paired runs, with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CRITERION = 1.05  # largest perplexity that counts as a success, as a multiple of the baseline's


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; where there is one seed only, its 95 % interval and the chance are None.

    `chance` is the p-value of a t-test: how often a difference at least this far from 0 would come up by luck alone.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    chance: float | None = None


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, and Student's 95 % interval."""
    from scipy import stats

    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean)
    if len(set(values)) == 1:  # no spread at all, of which SciPy makes no numbers
        return Estimate(mean, mean, mean, float(mean == 0))
    test = stats.ttest_1samp(values, 0.0)
    interval = test.confidence_interval(0.95)
    return Estimate(mean, float(interval.low), float(interval.high), float(test.pvalue))


def verdict(gap: Estimate, criterion: float) -> str:
    """Whether a gap in log-perplexity keeps perplexity within `criterion` × the baseline's."""
    if gap.low is None or gap.high is None:
        return "one seed only"
    threshold = math.log(criterion)
    if gap.high <= threshold:
        return "met"
    return "undecided" if gap.low <= threshold else "not met"  # also where a diverged run's gap is no number
