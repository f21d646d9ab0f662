"""What a report says: of each comparison everything that a reader may doubt, then the runs that could not be judged."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from oelm import variants
from oelm.analysis.compare import (
    ORIGINAL,
    Comparison,
    Measure,
    Row,
    compared,
    gap_with_interval,
    without_twins,
)
from oelm.analysis.results import LeftOut, Result, by_task, read_results, without_trials
from oelm.reporting.ablation import ablation
from oelm.reporting.blocks import (
    Block,
    Figures,
    Finding,
    Notes,
    Paragraph,
    Part,
    Record,
    Records,
    Report,
    Section,
    Table,
)
from oelm.reporting.curves import early, layer_figures, validation_figures
from oelm.reporting.money import pareto_figures, time_figures, time_table
from oelm.reporting.provenance import provenance
from oelm.reporting.samples import samples
from oelm.reporting.styles import styled
from oelm.runfolder import RunFolder
from oelm.runs.overview import overview
from oelm.runs.table import steps
from oelm.wording import Said, percent


def content(folders: Sequence[RunFolder], measure: Measure = ORIGINAL) -> Report:
    """The report on some runs; those that are not finished, or cannot be read, stop nothing."""
    results, left_out = read_results(folders)
    judged = without_trials(results)
    comparisons = []
    for group in sorted(by_task(judged), key=len, reverse=True):
        single, twins = without_twins(group)
        left_out += twins
        comparisons.append(compared(sorted(single, key=_place), measure, beside=results))
    sections = [_section(number, each) for number, each in enumerate(comparisons, start=1)]
    if left_out:
        sections.append(_unjudged(left_out))
    opening = _opening(comparisons, left_out, len(results) - len(judged), measure.criterion)
    return Report(Said("OELM report"), opening, tuple(sections))


def _place(result: Result) -> tuple[int, str, float, int]:
    """Where a run stands: the named variants in their order, the baseline first; then the others."""
    order = list(variants.NAMED)
    place = order.index(result.variant) if result.variant in order else len(order)
    return place, result.variant, result.config.max_lr, result.config.seed


def _opening(
    comparisons: Sequence[Comparison], left_out: Sequence[LeftOut], trials: int, criterion: float
) -> tuple[Block, ...]:
    rows = [row for comparison in comparisons for row in comparison.rows]
    if not rows:
        return (Paragraph((Said("No run is finished yet: there is nothing to judge."),)),)
    runs = [result for row in rows for result in row.results]
    lede = [
        Said("Finished runs: {runs}, the newest of {date}.", runs=len(runs), date=_newest(runs)),
        Said("The criterion: a perplexity of at most {criterion:g} × the baseline's.", criterion=criterion),
    ]
    if trials:
        lede.append(Said("Runs that only served to find a learning rate, and are not judged: {runs}.", runs=trials))
    if left_out:
        lede.append(Said("Runs that could not be judged: {runs}, listed below.", runs=len(left_out)))
    if len(comparisons) == 1:
        return (Paragraph(tuple(lede)),)
    verdicts = [
        (_short(comparison), row.title, "–" if row.gap is None else gap_with_interval(row.gap), row.verdict)
        for comparison in comparisons
        for row in comparison.rows
        if not row.is_baseline
    ]
    return Paragraph(tuple(lede)), Table(("task", "variant", "gap", "verdict"), verdicts)


def _newest(results: Sequence[Result]) -> str:
    """The day on which the last of the runs ended."""
    last = max(float(result.folder.status()["heartbeat"]) for result in results)
    return time.strftime("%Y-%m-%d", time.gmtime(min(max(last, 0.0), 2.0**36)))


def _short(comparison: Comparison) -> str:
    first = comparison.rows[0].results[0]
    named = {"corpus": first.corpus, "preset": first.config.preset, "max_steps": first.config.max_steps}
    return Said("{corpus}, {preset}, {max_steps:,} steps", **named)


def _section(number: int, comparison: Comparison) -> Section:
    arms, name = styled(comparison.rows), f"task-{number}"
    legend = tuple((row.title, style) for row, style in arms)
    parts = [
        Part("", (Paragraph((comparison.task,)),)),
        Part("Verdict", tuple(_findings(comparison))),
        Part("Before you believe it", (Notes(comparison.warnings),)) if comparison.warnings else None,
        Part("Quality and cost", (Table(*comparison.quality, note=comparison.legend), Table(*comparison.cost))),
        Part("The ablation, taken apart", ablation(comparison)),
        Part("Validation perplexity on the way", (early(comparison),)),
        Part("Validation curves", (Figures(validation_figures(arms, name), legend, BAND),)),
        Part("Quality against cost", (Figures(pareto_figures(arms, name), legend, FRONT),)),
        Part("Where the time went", (*_figures(time_figures(arms, name)), time_table(comparison))),
        Part("Attention and drift, layer by layer", _figures(layer_figures(arms, name), legend, LAYERS)),
        Part("Samples, side by side", samples(comparison)),
        Part("Provenance", provenance(comparison)),
    ]
    title = Said("{number}. {task}", number=number, task=_short(comparison))
    return Section(title, name, tuple(part for part in parts if part is not None and part.blocks))


BAND = (
    "Lines are means over the seeds, bands go from the lowest to the highest seed. Scored on the way, on the same "
    "tokens. The steep beginning may lie above the frame."
)
FRONT = (
    "Down and to the left is better. The dotted line joins those that no other variant beats in both; "
    "whiskers are 95 % intervals over the seeds."
)
LAYERS = (
    "At the end of training, means over the seeds. Entropy in nats, on fixed validation sequences; drift is the "
    "distance from the matrix at birth, relative to its norm: 0 for one that stayed frozen. A previous-token head "
    "looks at the token before, an induction head at what followed an earlier copy of the present token (in random "
    "tokens said twice); shown is the best head of each layer."
)


def _figures(figures: tuple[Any, ...], legend: tuple[Any, ...] = (), note: str = "") -> tuple[Block, ...]:
    return (Figures(figures, legend, note),) if figures else ()


def _findings(comparison: Comparison) -> list[Block]:
    said: list[Block] = [_finding(row, comparison.criterion) for row in comparison.rows if not row.is_baseline]
    return said or [Paragraph((Said("There is nothing here to hold against the baseline."),))]


SENTENCES = {
    "met": "Its perplexity is {gap} against that of {reference}; the whole interval lies within the {limit} allowed.",
    "not met": "Its perplexity is {gap} against that of {reference}; "
    "the whole interval lies beyond the {limit} allowed.",
    "undecided": "Its perplexity is {gap} against that of {reference}. The interval covers the limit of {limit}: "
    "more seeds would tell.",
    "one seed only": "In the one pair of runs its perplexity is {gap} against that of {reference}, where {limit} is "
    "allowed. One pair says nothing about the spread between seeds: no verdict.",
    "–": "There is no run of the baseline with the same seed to hold it against: no verdict.",
}


def _finding(row: Row, criterion: float) -> Finding:
    gap = "–" if row.gap is None else gap_with_interval(row.gap)
    sentences = [
        Said(SENTENCES[row.verdict], gap=gap, reference=row.reference, limit=percent(math.log(criterion))),
        Said("It trains {share:.1f} % of its parameters.", share=100 * row.trained_share),
    ]
    if row.step_ratio is not None:
        sentences.append(Said("A step takes {ratio:.3f} × that one's time.", ratio=row.step_ratio))
    return Finding(row.title, row.verdict, tuple(sentences))


def _unjudged(left_out: Sequence[LeftOut]) -> Section:
    records = tuple(Record(str(each.folder.path), _cause(each)) for each in left_out)
    return Section(Said("Runs that could not be judged"), "unjudged", (Part("", (Records(records),)),))


def _cause(left_out: LeftOut) -> tuple[tuple[str, str], ...]:
    """What became of a run: its state, how far it got and what it said last; or why it cannot be judged."""
    run = overview(left_out.folder)
    if run.state in ("finished", "unreadable"):
        state = "finished" if left_out.twin else "unreadable"
        return (("state", state), ("cause", left_out.reason))
    return (("state", run.state), ("step", steps(run)), ("cause", run.message or left_out.reason))
