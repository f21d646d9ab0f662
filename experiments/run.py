"""Runs the matrices of the study on one device, in one process: python -m experiments.run experiments/search.yaml

A run of a few seconds is not worth a process of its own, whose start takes as long. Each run's folder is kept under
experiments/results without its checkpoints; what is kept there is not run again. Ends with 0 when nothing is left to
run, with 1 when something is: the same command goes on with it.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import shutil
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from oelm.config import RunConfig
from oelm.errors import InterruptedRunError, RunFailedError, UserError
from oelm.runfolder import RunFolder, write_whole
from oelm.runs.matrix import Arm, read_matrix
from oelm.runs.standing import check
from oelm.training.loop import fit
from oelm.training.tuning import choice

RESULTS = Path(os.path.relpath(Path(__file__).parent / "results"))  # relative, for it stands in what is kept
SCRATCH = Path("outputs")
KEPT = (
    *("metrics.jsonl", "evals.jsonl", "timing_stats.json", "freeze_audit.json", "status.json"),
    "samples",
)
SECONDS_TO_START = 30.0


def run(
    matrices: Sequence[Path],
    results: Path,
    data_dir: Path,
    minutes: float = math.inf,
    archive: Path | None = None,
    part: tuple[int, int] = (1, 1),
) -> int:
    """Runs what is not kept yet, and returns how many runs are left."""
    until = time.monotonic() + 60 * minutes
    _check_places(results, archive)
    arms = [arm for path in matrices for arm in read_matrix(path, results, data_dir)][part[0] - 1 :: part[1]]
    check(arms)
    seconds_per_step, compiled_for = 0.0, ""
    with tempfile.TemporaryDirectory(prefix="study-", dir=SCRATCH) as place:
        scratch = RunFolder(Path(place) / "run")
        for config in _todo(arms):
            expected = SECONDS_TO_START + config.max_steps * seconds_per_step
            if seconds_per_step and time.monotonic() + expected > until:
                continue
            if config.model_type != compiled_for:  # or the limit of kinds of block would be met some day
                torch._dynamo.reset()
                compiled_for = config.model_type
            if _train(config, scratch):
                seconds_per_step = max(seconds_per_step, scratch.timing()["total_wall_time"] / config.max_steps)
                print(f"{config.run_folder.relative_to(results)}: {_outcome(scratch)}", flush=True)
            if is_kept(scratch.path):
                keep(scratch, config.run_folder)
            if archive:
                _archive(results, archive)
    left = sum(not is_kept(path) for arm in arms for path in planned(arm))
    print(f"{left} runs are left" if left else "nothing is left to run", flush=True)
    return left


def planned(arm: Arm) -> list[Path]:
    """The folders of an arm's runs: of those that look for its rate, and of those that count."""
    return [config.run_folder for config in (*arm.trials(), *arm.runs(arm.rates[0]))]


def _check_places(results: Path, archive: Path | None) -> None:
    """Refuses, before anything is trained, places where nothing could be kept."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        SCRATCH.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"--results {results} and {SCRATCH} must be folders that can be written: {error}") from None
    if archive and (archive.is_dir() or not archive.parent.is_dir()):
        raise UserError(f"--archive {archive} must be a file in a folder that is there")


def _todo(arms: Sequence[Arm]) -> Iterator[RunConfig]:
    """The runs that are not kept yet; of each arm first those that look for its rate."""
    for arm in arms:
        yield from (config for config in arm.trials() if not is_kept(config.run_folder))
        rate = _rate(arm)
        if rate is not None:
            yield from (config for config in arm.runs(rate) if not is_kept(config.run_folder))


def _rate(arm: Arm) -> float | None:
    """The best rate of an arm's trials, once all of them are kept."""
    trials = [RunFolder(config.run_folder) for config in arm.trials()]
    if not trials:
        return arm.rates[0]
    if not all(is_kept(trial.path) for trial in trials):
        return None
    try:
        return choice(trials).best
    except UserError as error:  # every rate diverged: the other arms are to be run all the same
        print(f"{arm.folder.name}: {error}", flush=True)
        return None


def is_kept(path: Path) -> bool:
    folder = RunFolder(path)
    return folder.exists() and (folder.status()["state"] == "finished" or bool(folder.status().get("diverged")))


def _train(config: RunConfig, scratch: RunFolder) -> bool:
    """Whether a run has ended well; of the others, one that has diverged is kept, the rest are tried again."""
    shutil.rmtree(scratch.path, ignore_errors=True)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    try:
        command = ["python", "-m", "experiments.run", *sys.argv[1:]]
        fit(replace(config, out_dir=str(scratch.path)), command=command)
        return True
    except InterruptedRunError:  # whoever stops this run means all of them
        raise
    except Exception as error:  # of whatever kind: the others are to be run all the same
        if not isinstance(error, RunFailedError):
            traceback.print_exc()
        print(f"{config.run_folder}: {error}", flush=True)
        return False


def _outcome(folder: RunFolder) -> str:
    final, timing = folder.final_eval(), folder.timing()
    assert final is not None
    return f"PPL {final['ppl']:.3f}, {1000 * timing['median_step_time']:.2f} ms/step"


def keep(folder: RunFolder, path: Path) -> None:
    """Copies what a comparison or a report reads, whole or not at all."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(replace(folder.config(), out_dir=str(path)).to_yaml())
    for name in KEPT:
        source = folder.path / name
        if source.is_dir():
            shutil.copytree(source, path / name)
        elif source.exists():
            shutil.copy(source, path / name)
    write_whole(path / "manifest.json", (folder.path / "manifest.json").read_text())  # which makes it a run folder


def _archive(results: Path, archive: Path) -> None:
    scratch = archive.with_name(f".{archive.name}.{os.getpid()}")
    with tarfile.open(scratch, "w") as tar:
        tar.add(results, arcname="results")
    scratch.replace(archive)


def _minutes(text: str) -> float:
    if not (minutes := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return minutes


def _part(text: str) -> tuple[int, int]:
    number, separator, of = text.partition("/")
    if not (separator and number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise argparse.ArgumentTypeError(f"{text!r} is not like 1/2")
    return int(number), int(of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrices", nargs="+", type=Path)
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="where the prepared corpora are")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the runs are kept")
    within = "begin nothing that would not be done by then, going by the runs before; the first is begun in any case"
    parser.add_argument("--minutes", type=_minutes, default=math.inf, help=within)
    shared = "of N processes that share the work, an arm at a time, this is the K-th"
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="K/N", help=shared)
    parser.add_argument("--archive", type=Path, metavar="FILE.tar", help="all that is kept, written after every run")
    options = parser.parse_args()
    try:
        sys.exit(run(**vars(options)) > 0)
    except UserError as error:
        print(f"experiments.run: {error}", file=sys.stderr)
        sys.exit(2)
    except InterruptedRunError:
        sys.exit("experiments.run: stopped; the same command goes on, beginning with the run that was cut")


if __name__ == "__main__":
    main()
