"""`oelm list`: the experiments that there are, how far each is, and what came out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oelm.analysis.compare import ORIGINAL, compared, without_twins
from oelm.analysis.results import by_task, read_results, without_trials
from oelm.runfolder import runs_below
from oelm.runs.matrix import EXPERIMENTS, REPORTED, TUNING
from oelm.runs.overview import STATES, Overview, overviews
from oelm.wording import percent, perplexity, shown

HEADINGS = ("experiment", "corpus", "variant", "max_lr", "steps", "runs", "PPL", "gap", "study's PPL")


def rows(outputs: Path) -> list[tuple[str, ...]]:
    """The study's seven, then whatever else there is below the outputs."""
    runs: dict[str, list[Overview]] = {}
    for run in overviews(outputs) if outputs.is_dir() else []:
        name, *inner = Path(run.path).absolute().relative_to(outputs.absolute()).parts or (outputs.name,)
        if not run.trial and TUNING not in inner:  # one that waits does not say yet what it is for
            runs.setdefault(name, []).append(run)
    gaps = _gaps(outputs) if runs else {}
    return [
        *(_of_the_study(name, runs.pop(name, []), gaps) for name in EXPERIMENTS),
        *((name, *_described(found), *_results(found, gaps), "") for name, found in sorted(runs.items())),
    ]


def _gaps(outputs: Path) -> dict[str, float]:
    """By run folder, the gap of the run's arm, as `oelm compare` gives it."""
    results, _ = read_results(runs_below(outputs))
    groups = (without_twins(group)[0] for group in by_task(without_trials(results)))
    found = [row for group in groups for row in compared(group, ORIGINAL).rows if row.gap is not None]
    return {str(result.folder.path): row.gap.mean for row in found for result in row.results if row.gap}


def _of_the_study(name: str, runs: Sequence[Overview], gaps: Mapping[str, float]) -> tuple[str, ...]:
    """What was run of it; before that, what it is. The study's result stands beside nothing else than itself."""
    config = EXPERIMENTS[name]()
    study = (config.dataset, config.preset, config.max_steps)
    reported = f"{REPORTED[name]:.2f}" if name in REPORTED else "never run"
    as_it_was = all(
        (run.dataset or config.dataset, run.preset or config.preset, run.max_steps) == study for run in runs
    )
    plan = (config.dataset, config.model_type, f"{config.max_lr:g}", f"{config.max_steps:,}")
    what = tuple(here or planned for here, planned in zip(_described(runs), plan, strict=True))
    return name, *what, *_results(runs, gaps), reported if as_it_was else "other task"


def _described(runs: Sequence[Overview]) -> tuple[str, str, str, str]:
    """Corpus, variant, learning rate and steps of some runs: what they share, or how many there are."""
    return (
        _shared(runs, lambda run: run.dataset, "corpora"),
        _shared(runs, lambda run: run.model_type, "variants"),
        _shared(runs, lambda run: run.max_lr and f"{run.max_lr:g}", "rates"),
        _shared(runs, lambda run: run.max_steps and f"{run.max_steps:,}", "lengths"),
    )


def _shared(runs: Sequence[Overview], what: Callable[[Overview], Any], several: str) -> str:
    values = list(dict.fromkeys(str(value) for run in runs if (value := what(run))))
    return values[0] if len(values) == 1 else f"{len(values)} {several}" if values else ""


def _results(runs: Sequence[Overview], gaps: Mapping[str, float]) -> tuple[str, str, str]:
    """How many runs are in which state; where they are of one variant, their mean perplexity and gap."""
    if not runs:
        return "none yet", "", ""
    states = Counter(run.state for run in runs)
    listed = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    finished = [run for run in runs if run.state == "finished" and run.val_loss is not None]
    if not finished or len({(run.model_type, run.dataset) for run in finished}) > 1:
        return listed, "", ""
    losses = [run.val_loss for run in finished if run.val_loss is not None]
    found = [gaps[run.path] for run in finished if run.path in gaps]
    mean = shown(perplexity(math.fsum(losses) / len(losses)), 2)
    return listed, mean, percent(math.fsum(found) / len(found)) if found else ""
