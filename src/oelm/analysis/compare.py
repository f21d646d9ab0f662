"""Runs side by side: quality paired by seed, cost, and a word on everything that would make it unfair."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oelm import variants
from oelm.analysis.fairness import (
    Arm,
    listed,
    paired_gaps,
    refuse_other_tasks,
    shared_device,
    unequal_cost,
    unequal_extras,
    warnings,
)
from oelm.analysis.results import LeftOut, Result, by_task, read_result, read_results, without_trials
from oelm.analysis.stats import CRITERION, Estimate, estimate, verdict
from oelm.config import RunConfig
from oelm.errors import UserError, is_number
from oelm.runfolder import RunFolder
from oelm.specs import Variant
from oelm.wording import Said, aligned, formatted, memory, percent, perplexity, shown

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
AS_GOOD_AFTER = '"as good after": the time until a variant was as good as the baseline was in the end'
CHANCE = "p: how often chance alone would make a gap at least this far from 0"
TWIN = "the same variant and seed as {path}, which is counted"


@dataclass(frozen=True)
class Row:
    """One variant in one setting: its runs over the seeds."""

    title: str
    results: tuple[Result, ...]
    loss: Estimate
    gap: Estimate | None  # in log-perplexity, paired by seed; None for the baseline itself
    verdict: str
    reference: str | None  # the title of the baseline that it is held against
    step_time: float
    step_ratio: float | None  # to the baseline's; None where times are not comparable
    memory: float | None
    seconds_to_baseline: float | None  # until it was as good as the baseline in the end; None: never, or not comparable
    is_baseline: bool = False  # at whatever rate, with whatever extras

    @property
    def model_type(self) -> str:
        return self.results[0].variant

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(result.config.seed for result in self.results)

    @property
    def parameters(self) -> dict[str, int]:
        parameters: dict[str, int] = self.results[0].manifest["parameters"]
        return parameters

    @property
    def query_key_share(self) -> str:
        """What of Q and K ever trains; runs of earlier versions have not noted it."""
        share = self.results[0].manifest.get("trained_share_of_qk")
        return f"{share:.1%}" if is_number(share) else "–"

    @property
    def ppl(self) -> float:
        return perplexity(self.loss.mean)

    @property
    def trained_share(self) -> float:
        """Of all parameters, those that train at any time; runs of earlier versions have noted those at first alone."""
        return self.parameters.get("ever_trained", self.parameters["trainable"]) / self.parameters["total"]


@dataclass(frozen=True)
class Comparison:
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    criterion: float
    task: str
    left_out: tuple[LeftOut, ...] = ()

    @property
    def quality(self) -> Table:
        """How good the variants are, as text: headings, and a row of cells each."""
        columns = None if self._timed else -1
        headings = (
            "variant",
            "seeds",
            Said("{split} loss", split=self.rows[0].results[0].config.final_split if self.rows else "val"),
            "PPL",
            "gap",
            "against",
            Said("PPL ≤ {criterion:g} ×", criterion=self.criterion),
            "as good after",
        )
        cells = [
            (
                row.title,
                listed(row.seeds),
                with_interval(row.loss),
                ppl_with_interval(row.loss),
                "–" if row.gap is None else gap_with_interval(row.gap),
                "–" if row.gap is None else row.reference or "–",
                row.verdict,
                "–" if row.seconds_to_baseline is None else formatted(row.seconds_to_baseline),
            )
            for row in self.rows
        ]
        return headings[:columns], [row[:columns] for row in cells]

    @property
    def cost(self) -> Table:
        """What the variants cost, as text."""
        columns = None if any(row.memory is not None for row in self.rows) else -1
        headings = ("variant", "trainable", "frozen", "total", "trained", "of Q/K", "ms/step", "ratio", "memory")
        cells = [
            (
                row.title,
                f"{row.parameters['trainable']:,}",
                f"{row.parameters['frozen']:,}",
                f"{row.parameters['total']:,}",
                f"{row.trained_share:.1%}",
                row.query_key_share,
                f"{1000 * row.step_time:.2f}",
                "–" if row.step_ratio is None else f"{row.step_ratio:.3f} ×",
                "–" if row.memory is None else memory(row.memory),
            )
            for row in self.rows
        ]
        return headings[:columns], [row[:columns] for row in cells]

    @property
    def legend(self) -> str:
        """What the words in the tables mean."""
        tested = any(row.gap and row.gap.chance is not None for row in self.rows)
        said = [Said(text) for text, there in ((AS_GOOD_AFTER, self._timed), (CHANCE, tested)) if there]
        return Said("{meanings}", meanings=said) if said else ""

    @property
    def _timed(self) -> bool:
        """Whether the times of any variants can be held against each other."""
        return any(row.seconds_to_baseline is not None for row in self.rows)

    @property
    def notes(self) -> list[str]:
        """What is to be said below the tables."""
        left_out = [f"left out: {each}" for each in self.left_out]
        return [*filter(None, [self.legend]), *(f"note: {text}" for text in self.warnings), *left_out]

    def __str__(self) -> str:
        return "\n".join([self.task, "", aligned(*self.quality), "", aligned(*self.cost), "", *self.notes])


@dataclass(frozen=True)
class Measure:
    """What the variants are held against: which one is the baseline, and how much worse than it is good enough."""

    criterion: float = CRITERION
    baseline: str = "baseline"

    def __post_init__(self) -> None:
        if not is_number(self.criterion) or not 0 < self.criterion < math.inf:
            raise UserError(f"--criterion {self.criterion!r} must be a number above 0, such as {CRITERION}")
        object.__setattr__(self, "criterion", float(self.criterion))
        object.__setattr__(self, "baseline", variants.name_of(variants.parse(self.baseline)))


ORIGINAL = Measure()  # the study's own


def compare(folders: Sequence[RunFolder], measure: Measure = ORIGINAL) -> Comparison:
    """Compares finished runs with the baseline among them; refuses runs that were not given the same task."""
    results = [read_result(folder) for folder in folders]
    judged = without_trials(results)
    if not judged:
        raise UserError("these runs only served to find a learning rate: there is nothing to judge among them")
    refuse_other_tasks(judged)
    return compared(judged, measure, trials=len(results) - len(judged), beside=results)


def compare_all(folders: Sequence[RunFolder], measure: Measure = ORIGINAL) -> list[Comparison]:
    """A comparison for every task and setting among the runs; what is not judged is named in the first."""
    results, left_out = read_results(folders)
    judged = without_trials(results)
    if not judged:
        raise UserError("; ".join(["no run that counts is finished yet", *(each.reason for each in left_out)]))
    groups = []
    for group in sorted(by_task(judged), key=len, reverse=True):
        single, twins = without_twins(group)
        groups.append(single)
        left_out += twins
    first, *others = groups
    trials = len(results) - len(judged)
    return [
        compared(first, measure, tuple(left_out), trials, results),
        *(compared(group, measure, beside=results) for group in others),
    ]


def without_twins(results: Sequence[Result]) -> tuple[list[Result], list[LeftOut]]:
    """Results of which no two are the same variant, settings and seed; a second one cannot be paired."""
    kept: dict[tuple[str, int], Result] = {}
    twins = []
    for result in results:
        first = kept.setdefault((alike(result), result.config.seed), result)
        if first is not result:
            twins.append(LeftOut(result.folder, Said(TWIN, path=first.folder.path), twin=True))
    return list(kept.values()), twins


def compared(
    results: Sequence[Result],
    measure: Measure,
    left_out: tuple[LeftOut, ...] = (),
    trials: int = 0,
    beside: Sequence[Result] = (),
) -> Comparison:
    """The comparison of results of one task; trials: how many were left out because they only looked for a rate;
    beside: all that were read, which may have run at the same time."""
    arms = _arms(results)
    references = _references(arms, measure)
    incomparable = [reason for reason in (unequal_cost(arms), shared_device(results, beside)) if reason]
    rows = [_row(title, arm, references[title], arms, measure, not incomparable) for title, arm in arms.items()]
    said = warnings(results, arms, references) + incomparable
    if measure.baseline == "baseline":
        said += unequal_extras(arms)
    elif baseline := next(filter(None, references.values()), None):
        said.insert(0, Said("the baseline of this comparison is {title}", title=baseline))
    if trials:
        said.append(Said("{trials} runs that served to find a learning rate are not counted", trials=trials))
    return Comparison(tuple(rows), tuple(said), measure.criterion, _task(results[0]), left_out)


def alike(result: Result) -> str:
    """What the runs of one row have in common."""
    return repr([result.spec, result.settings(), result.config.max_lr, result.config.min_lr])


def _arms(results: Sequence[Result]) -> dict[str, Arm]:
    """Results by what was trained, and by seed; what sets two arms of one variant apart stands in their titles."""
    arms: dict[str, dict[int, Result]] = {}
    for result in results:
        arm, seed = arms.setdefault(alike(result), {}), result.config.seed
        if seed in arm:
            twins = f"{arm[seed].folder.path} and {result.folder.path}"
            raise UserError(f"{twins} are both {result.variant} with seed {seed}; leave one out")
        arm[seed] = result
    firsts = [next(iter(arm.values())) for arm in arms.values()]
    titles = [_title(first, [other for other in firsts if other.spec == first.spec]) for first in firsts]
    return dict(zip(titles, arms.values(), strict=True))


def _title(result: Result, siblings: Sequence[Result]) -> str:
    identities = [sibling.config.identity() for sibling in siblings]
    mine = result.config.identity()
    apart = [n for n in mine if n not in ("model_type", "seed") and len({repr(each[n]) for each in identities}) > 1]
    if "max_lr" in apart and "min_lr" in apart:  # which follows it, as a rule
        apart.remove("min_lr")
    described = ", ".join(f"{name} {mine[name]}" for name in apart)
    title = variants.title(result.config.model_type)
    return f"{title} ({described})" if described else title


def _references(arms: Mapping[str, Arm], measure: Measure) -> dict[str, str | None]:
    """What each arm is held against, by title."""
    results = {title: list(arm.values()) for title, arm in arms.items()}
    return {title: strongest(results, _fair_measures(arm[0].config, measure), arm) for title, arm in results.items()}


def _fair_measures(config: RunConfig, measure: Measure) -> tuple[Variant, ...]:
    """The baselines that are fair to a variant: without what it has besides freezing, and with it."""
    named, equal = variants.parse(measure.baseline), variants.fair_baseline(config.variant)
    return (named,) if measure.baseline != "baseline" or config.variant == equal else (named, equal)


def _is_baseline(config: RunConfig, measure: Measure) -> bool:
    """Whether others are held against it, and it is not judged itself."""
    if measure.baseline != "baseline":
        return config.spec_of(config.variant) == config.spec_of(variants.parse(measure.baseline))
    return config.variant == variants.fair_baseline(config.variant)


def strongest(
    arms: Mapping[str, Sequence[Result]], among: Sequence[Variant], judged: Sequence[Result] = ()
) -> str | None:
    """Of the arms of these variants the best: over the seeds that all of them have, or where there are none, over all.

    However often a worse one was run: to be held against it would flatter. judged: whose seeds it must share one of, if
    any does.
    """
    candidates = {title: arm for title, arm in arms.items() if arm[0].spec in map(arm[0].config.spec_of, among)}
    own = {result.config.seed for result in judged}
    paired = {title: arm for title, arm in candidates.items() if own & {result.config.seed for result in arm}}
    candidates = paired or candidates
    seeds = [{result.config.seed for result in arm} for arm in candidates.values()]
    common = set.intersection(*seeds) if seeds else set()

    def weakness(title: str) -> tuple[float, int]:
        losses = [result.loss for result in candidates[title] if not common or result.config.seed in common]
        return statistics.fmean(losses), -len(candidates[title])

    return min(candidates, key=weakness, default=None)


def _row(
    title: str, arm: Arm, against: str | None, arms: Mapping[str, Arm], measure: Measure, times_comparable: bool
) -> Row:
    reference = arms.get(against or "", {})
    gaps = paired_gaps(arm, reference)
    gap = estimate(gaps) if gaps and arm is not reference else None
    is_baseline = _is_baseline(next(iter(arm.values())).config, measure)
    results = tuple(arm[seed] for seed in sorted(arm))
    step_time = _step_time(arm)
    return Row(
        title=title,
        results=results,
        loss=estimate([result.loss for result in results]),
        gap=gap,
        verdict="–" if gap is None or is_baseline else verdict(gap, measure.criterion),
        reference=against,
        step_time=step_time,
        step_ratio=step_time / _step_time(reference) if reference and times_comparable else None,
        memory=max((result.memory for result in results if result.memory is not None), default=None),
        seconds_to_baseline=_seconds_to(arm, reference) if times_comparable else None,
        is_baseline=is_baseline,
    )


def _step_time(arm: Arm) -> float:
    return statistics.median(float(result.timing["median_step_time"]) for result in arm.values())


def _seconds_to(arm: Arm, reference: Arm) -> float | None:
    """The median, over the seeds, of the time until a run was as good as the baseline of its seed was in the end."""
    times = [
        arm[seed].seconds_to(reference[seed].scores[-1]["loss"])
        for seed in arm.keys() & reference.keys()
        if reference[seed].scores
    ]
    reached = [time for time in times if time is not None]
    return statistics.median(reached) if reached and len(reached) == len(times) else None


def _task(result: Result) -> str:
    config, final = result.config, result.final
    return Said(
        "{corpus}, {preset}: {tokens_seen:,} tokens seen ({max_steps:,} steps of {batch_size} × {seq_len}), "
        "recipe {recipe}, scored on {tokens_scored:,} tokens of {split}",
        corpus=result.corpus,
        split=config.final_split,
        **{name: getattr(config, name) for name in ("preset", "max_steps", "batch_size", "seq_len", "recipe")},
        **{name: final[name] for name in ("tokens_seen", "tokens_scored")},
    )


def with_interval(value: Estimate, digits: int = 4) -> str:
    if value.low is None:
        return f"{value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f} ± {value.mean - value.low:.{digits}f}"


def ppl_with_interval(loss: Estimate) -> str:
    middle = shown(perplexity(loss.mean), 3)
    if loss.low is None or loss.high is None:
        return middle
    return f"{middle} ({shown(perplexity(loss.low), 3)} … {shown(perplexity(loss.high), 3)})"


def gap_with_interval(gap: Estimate) -> str:
    if gap.low is None or gap.high is None:
        return percent(gap.mean)
    chance = "" if gap.chance is None else f", p {gap.chance:.2g}"
    return f"{percent(gap.mean)} ({percent(gap.low)} … {percent(gap.high)}{chance})"
