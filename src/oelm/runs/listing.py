"""`oelm list`: the experiments that there are, how far each is, and what came out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from oelm.runs.matrix import EXPERIMENTS, REPORTED, TUNING
from oelm.runs.overview import STATES, Overview, overviews
from oelm.wording import percent, perplexity, shown

HEADINGS = ("experiment", "corpus", "variant", "max_lr", "steps", "runs", "PPL", "gap", "study's PPL")


def rows(outputs: Path) -> list[tuple[str, ...]]:
    """The study's seven, then whatever else there is below the outputs."""
    runs: dict[str, list[Overview]] = {}
    for run in overviews(outputs) if outputs.is_dir() else []:
        name, *inner = Path(run.path).absolute().relative_to(outputs.absolute()).parts or (outputs.name,)
        if TUNING not in inner:  # those only served to find a rate
            runs.setdefault(name, []).append(run)
    return [
        *(_of_the_study(name, runs.pop(name, [])) for name in EXPERIMENTS),
        *(_other(name, found) for name, found in sorted(runs.items())),
    ]


def _of_the_study(name: str, runs: Sequence[Overview]) -> tuple[str, ...]:
    config = EXPERIMENTS[name]()
    reported = f"{REPORTED[name]:.2f}" if name in REPORTED else "never run"
    what = (name, config.dataset, config.model_type, f"{config.max_lr:g}", f"{config.max_steps:,}")
    return *what, *_results(runs), reported


def _other(name: str, runs: Sequence[Overview]) -> tuple[str, ...]:
    variants = list(dict.fromkeys(run.model_type for run in runs if run.model_type))
    what = variants[0] if len(variants) == 1 else f"{len(variants)} variants" if variants else ""
    steps = max((run.max_steps for run in runs if run.max_steps), default=None)
    return name, "", what, "", f"{steps:,}" if steps else "", *_results(runs), ""


def _results(runs: Sequence[Overview]) -> tuple[str, str, str]:
    """How many runs are in which state; where they are of one variant, their mean perplexity and gap."""
    if not runs:
        return "none yet", "", ""
    states = Counter(run.state for run in runs)
    listed = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    finished = [run for run in runs if run.state == "finished" and run.val_loss is not None]
    if not finished or len({run.model_type for run in finished}) > 1:
        return listed, "", ""
    losses = [run.val_loss for run in finished if run.val_loss is not None]
    gaps = [run.gap for run in finished if run.gap is not None]
    mean = shown(perplexity(math.fsum(losses) / len(losses)), 2)
    return listed, mean, percent(math.fsum(gaps) / len(gaps)) if gaps else ""
