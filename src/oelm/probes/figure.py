"""The probes as a picture: for each task the accuracy of each variant, and what a blind guess would give."""

from __future__ import annotations

from pathlib import Path

from oelm import variants
from oelm.analysis.stats import Estimate
from oelm.probes.tasks import TASKS


def draw(found: dict[tuple[str, str], Estimate], path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names, tasks = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 1))
    figure = Figure(figsize=(2.2 + 1.6 * len(tasks), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        of_name = [found[name, task] for task in tasks]
        places = [place - 0.4 + width * (number + 0.5) for place in range(len(tasks))]
        whiskers = [0.0 if score.low is None else 100 * (score.mean - score.low) for score in of_name]
        axes.bar(
            places,
            [100 * score.mean for score in of_name],
            width,
            yerr=whiskers if any(whiskers) else None,
            capsize=3,
            label=variants.title(name),
        )
    for place, task in enumerate(tasks):
        chance = 100 / TASKS[task].choices
        axes.plot([place - 0.42, place + 0.42], [chance, chance], color="0.3", linestyle=":", linewidth=1)
    axes.set(ylabel="answers right (%)", ylim=(0, 104))
    axes.set_xticks(range(len(tasks)), tasks)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside upper center", ncols=2)
    figure.savefig(path, dpi=150)
    return path
