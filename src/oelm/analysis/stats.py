"""Gaps between paired runs, with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CRITERION = 1.05  # largest perplexity that counts as a success, as a multiple of the baseline's


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds; the 95 % interval is None where there is one seed only."""

    mean: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and Student's 95 % interval."""
    from scipy import stats

    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean, None, None)
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(stats.sem(values))
    return Estimate(mean, mean - half, mean + half)


def verdict(gap: Estimate, criterion: float) -> str:
    """Whether a gap in log-perplexity keeps perplexity within `criterion` × the baseline's."""
    if gap.low is None or gap.high is None:
        return "one seed only"
    threshold = math.log(criterion)
    if gap.high <= threshold:
        return "met"
    return "undecided" if gap.low <= threshold else "not met"  # also where a diverged run's gap is no number
