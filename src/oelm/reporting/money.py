"""What the variants cost: quality against time and trained share, and where the time went."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from oelm.analysis.compare import Comparison, Row
from oelm.analysis.results import Result
from oelm.reporting.blocks import Bars, Figure, Point, Points, Style, Table
from oelm.reporting.curves import time_unit
from oelm.reporting.styles import Styled
from oelm.runfolder import PARTS
from oelm.wording import Said, formatted, perplexity


def seconds_of(row: Row) -> float:
    """The wall time of a run, as the mean over the seeds."""
    return statistics.fmean(float(result.final["elapsed"]) for result in row.results)


def pareto_figures(arms: Styled, name: str) -> tuple[Figure, ...]:
    unit, seconds = time_unit(max(seconds_of(row) for row, _ in arms))
    time_label = Said("wall-clock time of a run ({unit})", unit=unit)
    share_label = Said("trained share of the parameters (%)")

    def points(label: str, values: Sequence[float]) -> Points:
        cloud = tuple(_point(row, style, x) for (row, style), x in zip(arms, values, strict=True))
        return Points(label, Said("final perplexity"), cloud)

    return (
        Figure(
            f"{name}-pareto-time",
            Said("Quality against time"),
            points(time_label, [seconds_of(row) / seconds for row, _ in arms]),
        ),
        Figure(
            f"{name}-pareto-share",
            Said("Quality against trained share"),
            points(share_label, [100 * row.trained_share for row, _ in arms]),
        ),
    )


def _point(row: Row, style: Style, x: float) -> Point:
    loss = row.loss
    interval = None if loss.low is None or loss.high is None else (perplexity(loss.low), perplexity(loss.high))
    return Point(style, x, row.ppl, interval)


def parts_of(results: Sequence[Result]) -> dict[str, float]:
    """Seconds by part, as means over the seeds."""
    return {part: statistics.fmean(result.timing["seconds_by_part"][part] for result in results) for part in PARTS}


def time_figures(arms: Styled, name: str) -> tuple[Figure, ...]:
    by_arm = {row.title: parts_of(row.results) for row, _ in arms}
    names = list(dict.fromkeys(part for parts in by_arm.values() for part in parts))
    unit, seconds = time_unit(max((sum(parts.values()) for parts in by_arm.values()), default=0.0))
    stacks = {part: tuple(parts.get(part, 0.0) / seconds for parts in by_arm.values()) for part in names}
    shown = {part: values for part, values in stacks.items() if any(values)}
    if not shown:
        return ()
    bars = Bars(Said("wall-clock time of a run ({unit})", unit=unit), tuple(by_arm), shown)
    return (Figure(f"{name}-time", Said("Time of a run, by part"), bars),)


def time_table(comparison: Comparison) -> Table:
    by_arm = {row.title: parts_of(row.results) for row in comparison.rows}
    names = list(dict.fromkeys(part for parts in by_arm.values() for part in parts))
    rows = [(title, *(_short(parts.get(part, 0.0)) for part in names)) for title, parts in by_arm.items()]
    return Table(("variant", *names), rows, "Means over the seeds, all sessions of a run together.")


def _short(seconds: float) -> str:
    return f"{seconds:.2f}s" if seconds < 10 else formatted(seconds)
