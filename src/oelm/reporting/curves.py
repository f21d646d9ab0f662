"""Validation on the way, and attention and its matrices layer by layer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from oelm.analysis.compare import Comparison
from oelm.analysis.results import Result
from oelm.reporting.blocks import Block, Curve, Curves, Figure, Paragraph, Style, Table
from oelm.reporting.styles import Styled
from oelm.wording import Said, perplexity, shown

MOST_POINTS = 250  # of a curve: more than a screen tells apart
SHARES = (10, 30, 60, 100)
TOO_FAR = 0.05  # of a run's steps: how far from a share of them a validation may be to stand for it

MISSING = (
    "Means over the seeds, at the validation nearest to that share of the steps, on the same tokens in each. No "
    "validation of all the runs was near {shares}: a smaller val_interval would have given one."
)

Scores = dict[int, dict[str, Any]]  # by step


def scores_by_step(result: Result) -> Scores:
    return {score["step"]: score for score in result.scores}


def thinned(steps: Sequence[int], most: int = MOST_POINTS) -> list[int]:
    """At most so many of the steps, evenly spread, the first and the last among them."""
    if len(steps) <= most:
        return list(steps)
    return [steps[round(i * (len(steps) - 1) / (most - 1))] for i in range(most)]


def common_steps(runs: Sequence[Scores]) -> list[int]:
    """The steps after which all the runs were scored."""
    return sorted(set.intersection(*map(set, runs))) if runs else []


def early(comparison: Comparison) -> Block:
    """Perplexity at some shares of the steps; each column at a step after which all the runs were scored."""
    rows = [(row.title, [scores_by_step(result) for result in row.results]) for row in comparison.rows]
    max_steps = comparison.rows[0].results[0].config.max_steps
    steps = common_steps([scores for _, runs in rows for scores in runs])
    wanted = {share: share / 100 * max_steps for share in SHARES}
    nearest = {share: min(steps, key=lambda s: abs(s - step)) for share, step in wanted.items() if steps}
    near = {share: step for share, step in nearest.items() if abs(step - wanted[share]) <= TOO_FAR * max_steps}
    if not near:
        return Paragraph((Said("The runs were not scored after the same steps: no table can be given."),))
    headings = ("variant", *(Said("{share} % (step {step:,})", share=share, step=step) for share, step in near.items()))
    cells = [
        (title, *(shown(perplexity(statistics.fmean(s[step]["loss"] for s in runs)), 3) for step in near.values()))
        for title, runs in rows
    ]
    note: str = (
        "Means over the seeds, at the validation nearest to that share of the steps, on the same tokens in each."
    )
    if missing := [f"{share} %" for share in SHARES if share not in near]:
        note = Said(MISSING, shares=missing)
    return Table(headings, cells, note)


def validation_figures(arms: Styled, name: str) -> tuple[Figure, ...]:
    """Perplexity against steps, tokens and time."""
    runs = [([scores_by_step(result) for result in row.results], style) for row, style in arms]
    longest = max((s["elapsed"] for scores, _ in runs for run in scores for s in run.values()), default=0.0)
    unit, seconds = time_unit(longest)
    axes: list[tuple[str, str, Callable[[dict[str, Any]], float]]] = [
        ("steps", Said("steps"), lambda score: float(score["step"])),
        ("tokens", Said("tokens seen"), lambda score: float(score["tokens_seen"])),
        ("time", Said("wall-clock time ({unit})", unit=unit), lambda score: float(score["elapsed"]) / seconds),
    ]
    return tuple(
        Figure(
            f"{name}-validation-{short}",
            Said("Perplexity against {axis}", axis=label),
            Curves(label, Said("validation perplexity"), tuple(_curve(r, style, x) for r, style in runs), log=True),
        )
        for short, label, x in axes
    )


def _curve(runs: Sequence[Scores], style: Style, x: Callable[[dict[str, Any]], float]) -> Curve:
    steps = thinned(common_steps(runs) or sorted(runs[0]))
    runs = [run for run in runs if all(step in run for step in steps)]
    losses = [[float(run[step]["loss"]) for run in runs] for step in steps]
    xs = [statistics.fmean(x(run[step]) for run in runs) for step in steps]
    band = None
    if len(runs) > 1:
        band = [perplexity(min(each)) for each in losses], [perplexity(max(each)) for each in losses]
    return Curve(style, xs, [perplexity(statistics.fmean(each)) for each in losses], band)


def time_unit(longest: float) -> tuple[str, float]:
    """The unit in which a time reads well, and its seconds."""
    if longest < 300:
        return "s", 1.0
    return ("min", 60.0) if longest < 3 * 3600 else ("h", 3600.0)


LAYERED = {
    "attention_entropy": ("entropy", "Attention entropy", "nats"),
    "q_drift": ("q-drift", "Drift of Q", "relative distance from birth"),
    "k_drift": ("k-drift", "Drift of K", "relative distance from birth"),
}
HEADS = {
    "previous_token": ("previous-token", "Best previous-token head", "share of its attention"),
    "induction": ("induction", "Best induction head", "share of its attention"),
}


def layer_figures(arms: Styled, name: str) -> tuple[Figure, ...]:
    """What evals.jsonl says of each layer at the end; a run from elsewhere may say nothing."""
    figures = []
    for key, (short, title, label) in {**LAYERED, **HEADS}.items():
        curves = tuple(curve for row, style in arms if (curve := _layers(row.results, key, style)) is not None)
        if curves:
            drawing = Curves(Said("layer"), Said(label), curves, counted=True)
            figures.append(Figure(f"{name}-{short}", Said(title), drawing))
    return tuple(figures)


def _layers(results: Sequence[Result], key: str, style: Style) -> Curve | None:
    means = by_layer(results, key)
    return Curve(style, range(1, len(means) + 1), means) if means else None


def by_layer(results: Sequence[Result], key: str) -> list[float]:
    """A number per layer at the end, of its heads the best one's, as the mean over runs; none where no run says it."""
    found = [layers for result in results if (layers := _of_layers(result.final, key))]
    return [statistics.fmean(layer) for layer in zip(*found, strict=False)] if found else []


def _of_layers(final: dict[str, Any], key: str) -> list[float]:
    if key in LAYERED:
        layers: list[float] = final[key]
        return layers
    return [max(heads) for heads in final["heads"][key] if heads] if "heads" in final else []
