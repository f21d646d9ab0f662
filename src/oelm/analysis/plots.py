"""Figures of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from oelm import variants
from oelm.runfolder import RunFolder


def validation_curves(folders: Sequence[RunFolder], path: Path) -> Path:
    """Validation perplexity against tokens seen, a line per run, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    configs = [folder.config() for folder in folders]
    several_seeds = len({config.seed for config in configs}) > 1
    for folder, config in zip(folders, configs, strict=True):
        scores = [score for score in folder.scores() if not score["final"]]
        label = variants.title(config.model_type) + (f", seed {config.seed}" if several_seeds else "")
        axes.plot([s["tokens_seen"] for s in scores], [s["ppl"] for s in scores], marker=".", label=label)
    axes.set(xlabel="tokens seen", ylabel="validation perplexity", yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
