"""The verbs as functions, for a notebook: what `import oelm` offers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from oelm import sampling, terminal
from oelm.analysis import compare as comparison
from oelm.analysis.compare import Comparison, Measure
from oelm.analysis.stats import CRITERION
from oelm.config import RunConfig
from oelm.data import prepare as preparation
from oelm.errors import UserError, is_truth, known
from oelm.reporting import report as reporting
from oelm.reporting.report import Written
from oelm.runfolder import RunFolder, find_runs
from oelm.sampling import Sampling
from oelm.training.loop import fit

OPTIONS = [name for name in inspect.signature(preparation.prepare).parameters if name not in ("name", "source")]
Runs = str | Path | RunFolder | Sequence[str | Path | RunFolder]


def prepare(name: str, source: str | Path | Iterable[str | Path] = (), **options: Any) -> Path:
    """Prepares a corpus, like `oelm prepare`, and returns its folder."""
    for option in options:
        known("option", option, OPTIONS)
    if not isinstance(source, str | Path | Iterable):
        raise UserError(f"source must be a path or several, not {source!r}")
    for option, kind, holds in (("data_dir", "a path", _is_path), ("overwrite", "true or false", is_truth)):
        if option in options and not holds(options[option]):
            raise UserError(f"{option} must be {kind}, not {options[option]!r}")
    sources = [source] if isinstance(source, str | Path) else list(source)
    with terminal.preparing(name) as on_progress:
        return preparation.prepare(name, sources, on_progress=on_progress, **options)


def train(config: RunConfig | str | Path | None = None, **fields: Any) -> RunFolder:
    """Trains a run, like `oelm train`, and returns its folder. Fields are those of oelm.RunConfig, go above its own."""
    if not isinstance(config, RunConfig | str | Path | None):
        raise UserError(f"config must be an oelm.RunConfig or the path of a YAML file, not {config!r}")
    made = config.with_fields(**fields) if isinstance(config, RunConfig) else RunConfig(config, **fields)
    return fit(made, terminal.observer())


def compare(runs: Runs, criterion: float = CRITERION, baseline: str = "baseline") -> Comparison:
    """Compares finished runs with the baseline among them; print() shows the table."""
    return comparison.compare(_folders(runs), Measure(criterion, baseline))


def report(
    runs: Runs,
    out: str | Path | None = None,
    criterion: float = CRITERION,
    lang: str = "en",
    baseline: str = "baseline",
) -> Written:
    """Writes a report on runs, like `oelm report`, and returns which files it is."""
    written = reporting.report(_folders(runs), out, Measure(criterion, baseline), lang)
    for note in written.notes:
        print(f"oelm: {note}", file=sys.stderr)
    return written


def sample(runs: Runs, prompt: str = "", **options: Any) -> str:
    """Text from a run; from several, one after the other under their names. Options are the flags of `oelm sample`."""
    for name in options:
        known("option", name, [field.name for field in fields(Sampling)])
    folders, how = _folders(runs), Sampling(prompt, **options)
    texts = [sampling.sample(folder, how) for folder in folders]
    return sampling.one_after_the_other([str(folder.path) for folder in folders], texts)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | Path)


def _folders(runs: Runs) -> list[RunFolder]:
    if not isinstance(runs, str | Path | RunFolder | Iterable):
        raise UserError(f"runs must be a run, or several, not {runs!r}")
    several = [runs] if isinstance(runs, str | Path | RunFolder) else list(runs)
    return find_runs([run.path if isinstance(run, RunFolder) else run for run in several])
