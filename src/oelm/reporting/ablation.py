"""The ablation taken apart: what freezing costs, what orthogonality brings, what scale brings, and under a correction
what each part of that brings, and whether the frozen matrix brings anything at all."""

from __future__ import annotations

from collections.abc import Iterator

from oelm import variants
from oelm.analysis.compare import Comparison, gap_with_interval, strongest
from oelm.analysis.fairness import paired_gaps
from oelm.analysis.stats import Estimate, estimate
from oelm.reporting.blocks import Table
from oelm.wording import Said

# A question, and the two variants that differ in nothing else.
QUESTIONS = (
    ("what freezing costs", "orthogonal_trainable", "oelm_v2"),
    ("what start and freezing cost together", "baseline", "oelm_v2"),
    ("what orthogonality brings", "oelm_matched", "oelm_v2"),
    ("what scale brings", "oelm_random", "oelm_matched"),
)
# What may stand under a correction instead of the frozen orthogonal matrix.
CONTROLS = (
    ("what the frozen matrix brings under its correction", "zero"),
    ("what orthogonality brings under its correction", "matched"),
    ("what mixing the channels brings under its correction", "identity"),
)
DECISIVE = "zero"  # where nobody has run that, it is said
NOTE = (
    "The change of perplexity from the first variant to the second, paired by seed, with its 95 % interval and p, the "
    "chance of a difference this large if there were none. They are not corrected for being several. Of a variant that "
    "ran at several rates or settings, the best counts, by these same scores."
)


def ablation(comparison: Comparison) -> tuple[Table]:
    """A row per question; where a run is missing, it says which."""
    rows = [_answer(comparison, *question) for question in (*QUESTIONS, *_controls(comparison))]
    rows += _open(comparison)
    return (Table(("question", "from → to", "change of PPL", "answer"), rows, NOTE),)


def _controls(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    """For every frozen orthogonal matrix that is corrected, questions like the others: without each of the corrections,
    and with all of them over something else, as far as that was run."""
    ran = _ran(comparison)
    configs = {row.model_type: row.results[0].config for row in comparison.rows}
    repaired = {name: config for name, config in configs.items() if variants.repaired(config.variant)}
    for name, config in repaired.items():
        for part in variants.corrections(config.variant):
            control = variants.without(config.variant, part)
            if control and config.spec_of(control) in ran:
                yield Said("what {part} brings", part=part), variants.name_of(control), name
    for question, source in CONTROLS:
        for name, config in repaired.items():
            control = variants.over(config.variant, source)
            if control and config.spec_of(control) in ran:
                yield question, variants.name_of(control), name


def _ran(comparison: Comparison) -> set[str]:
    """The specs of what was run."""
    return {result.spec for row in comparison.rows for result in row.results}


def _open(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The corrected variants of which the decisive question has no answer: the control was not run, or cannot be."""
    ran, missing, senseless = _ran(comparison), [], []
    for row in comparison.rows:
        config = row.results[0].config
        control = variants.over(config.variant, DECISIVE)
        if not variants.repaired(config.variant):
            continue
        if control is None:
            senseless.append(row.title)
        elif config.spec_of(control) not in ran:
            missing.append(row.title)
    not_run = Said("open: no finished run of the same over {source}", source=DECISIVE)
    without_effect = Said("open: parts would have no effect over {source}", source=DECISIVE)
    for titles, why in ((missing, not_run), (senseless, without_effect)):
        if titles:
            yield CONTROLS[0][0], ", ".join(titles), "–", why


def _answer(comparison: Comparison, question: str, before: str, after: str) -> tuple[str, ...]:
    arms = {row.title: row.results for row in comparison.rows}
    titles = {variant: strongest(arms, [variants.parse(variant)]) for variant in (before, after)}
    missing = [variants.title(variant) for variant, title in titles.items() if title is None]
    first_title, second_title = (title or variants.title(variant) for variant, title in titles.items())
    pair = Said("{before} → {after}", before=first_title, after=second_title)
    if missing:
        return question, pair, "–", Said("open: no finished run of {arms}", arms=missing)
    first, second = ({r.config.seed: r for r in arms[title]} for title in titles.values() if title is not None)
    gaps = paired_gaps(second, first)
    if not gaps:
        return question, pair, "–", Said("open: they share no seed")
    gap = estimate(gaps)
    return question, pair, gap_with_interval(gap), _reading(gap, second_title)


def _reading(gap: Estimate, arm: str) -> str:
    if gap.low is None or gap.high is None:
        return Said("one seed only: the noise between seeds is unknown")
    if gap.low > 0:
        return Said("{arm} is worse", arm=arm)
    return Said("{arm} is better", arm=arm) if gap.high < 0 else Said("no difference can be told from the noise")
