"""`oelm demo`: from nothing to a comparison of four variants, on a CPU, in a few minutes."""

from __future__ import annotations

from pathlib import Path

from oelm import terminal
from oelm.analysis.compare import compare
from oelm.analysis.plots import validation_curves
from oelm.config import RunConfig
from oelm.data import prepare as preparation
from oelm.data.meta import is_corpus
from oelm.reporting.report import report, up_to_date
from oelm.runfolder import RunFolder, write_whole
from oelm.sampling import Sampling, sample
from oelm.training.loop import fit
from oelm.variants import title

VARIANTS = ("baseline", "oelm_v2", "oelm_random", "oelm_v3")
SAMPLED = ("baseline", "oelm_v3")
STEPS = 900
LEARNING_RATE = 6e-3
PROMPT = "One day, Nina"


def demo(data_dir: str = "data", out_dir: str = "outputs/demo", steps: int = STEPS) -> None:
    """Tells the storybook, trains four variants on it, compares them. What is done already is not done again."""
    print("1. The corpus: stories told from a seed")
    data = _corpus(Path(data_dir))
    print(f"   {data}\n")
    runs = {name: _train(number, name, data, Path(out_dir), steps) for number, name in enumerate(VARIANTS, start=2)}
    folders = list(runs.values())
    print(f"{len(runs) + 2}. The comparison\n")
    terminal.show(compare(folders))
    curves = validation_curves(folders, Path(out_dir) / "validation.png")
    print("\nThe run folders, with everything that was measured:")
    for folder in folders:
        print(f"   {folder.path}")
    print(f"The validation curves:\n   {curves}")
    for folder in (runs[name] for name in SAMPLED):
        path = folder.path / "samples" / "demo.txt"
        text = path.read_text(encoding="utf-8") if path.exists() else sample(folder, Sampling(PROMPT, tokens=120))
        write_whole(path, text)
        print(f'A sample from {title(folder.config().model_type)}, prompted with "{PROMPT}" ({path}):')
        print(f"   {text}")
    page = _report(folders, Path(out_dir))
    print(f"A report on all of it, to open in a browser; beside it as a PDF and as Markdown:\n   {page}")


def _corpus(data_dir: Path) -> Path:
    """The storybook; one that was prepared with other settings also does, for all of them are trained on it."""
    if is_corpus(data_dir / "storybook"):
        return data_dir / "storybook"
    with terminal.preparing("storybook") as on_progress:
        return preparation.prepare("storybook", data_dir=data_dir, on_progress=on_progress)


def _report(folders: list[RunFolder], out_dir: Path) -> Path:
    """The report on the runs, written again only where one of them is newer."""
    page = out_dir / "report.html"
    if not up_to_date([page, out_dir / "report.md"], folders):
        for note in report(folders, out_dir).notes:
            print(f"oelm: {note}")
    return page


def _train(number: int, name: str, data: Path, out_dir: Path, steps: int) -> RunFolder:
    print(f"{number}. {title(name)}")
    config = RunConfig(
        preset="nano",
        model_type=name,
        data_path=str(data),
        out_dir=str(out_dir / name / "seed-0"),
        max_steps=steps,
        max_lr=LEARNING_RATE,
        val_interval=max(1, steps // 9),
        device="cpu",
    )
    folder = fit(config, terminal.observer())
    print()
    return folder
