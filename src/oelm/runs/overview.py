"""How runs stand, read lightly from their folders: what `oelm status` and `oelm watch` show.

Of files that grow only the end is read, and of a baseline's the one line that another run is held against. A folder
that makes no sense is listed as unreadable, with the reason, and keeps nobody from seeing the others.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from oelm import variants
from oelm.config import RunConfig
from oelm.errors import UserError, known
from oelm.runfolder import DEAD_AFTER_SECONDS, RunFolder, runs_below
from oelm.runs.attempts import last_cause
from oelm.runs.waiting import FOLDER as NOTICES
from oelm.runs.waiting import Waiting, waiting
from oelm.wording import perplexity

# In the order in which they want to be seen.
STATES = ("running", "starting", "dead", "failed", "unreadable", "interrupted", "waiting", "finished")
ACTIVE = ("running", "starting")
MAY_DIFFER = ("model_type", "max_lr", "min_lr")  # between a run and its baseline

T = TypeVar("T")


@dataclass(frozen=True)
class Overview:
    """One run at a glance. What is not known, or not yet, is None."""

    path: str
    state: str
    message: str = ""  # why it is in that state, where it says so
    model_type: str | None = None
    dataset: str | None = None
    preset: str | None = None
    max_lr: float | None = None
    trial: bool = False  # whether it only serves to find a learning rate
    seed: int | None = None
    step: int = 0
    max_steps: int | None = None
    loss: float | None = None
    val_step: int | None = None
    val_loss: float | None = None
    split: str | None = None  # that val_loss is a score on: val, or test for the final one of some runs
    best_loss: float | None = None  # of the validations on the way
    gap: float | None = None  # to the baseline at the same step, in log-perplexity
    tokens_per_second: float | None = None
    seconds_left: float | None = None
    device: str | None = None  # cpu, or a GPU as NVML names it
    host: str | None = None
    pid: int | None = None

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def share(self) -> float | None:
        """How much of it is done."""
        return None if self.max_steps is None else self.step / self.max_steps

    @property
    def val_ppl(self) -> float | None:
        return None if self.val_loss is None else perplexity(self.val_loss)

    @property
    def best_ppl(self) -> float | None:
        return None if self.best_loss is None else perplexity(self.best_loss)

    def as_json(self) -> dict[str, Any]:
        fields = {**asdict(self), "val_ppl": self.val_ppl, "best_ppl": self.best_ppl}
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in fields.items()}


def overviews(*outputs: Path) -> list[Overview]:
    """All the runs below some folders, and those that queues have yet to start there."""
    return Reader().overviews(*outputs)


def overview(folder: RunFolder) -> Overview:
    """One run at a glance, whatever is wrong with it; without a gap, since it is looked at alone."""
    return Reader().told(folder).overview


@dataclass(frozen=True)
class Told:
    """What a run folder says: the overview, and what it takes to find its baseline."""

    overview: Overview
    folder: RunFolder
    task: str = ""
    is_baseline: bool = False
    score: dict[str, Any] | None = None


class Reader:
    """Reads run folders again and again, but a file only when it has changed."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def overviews(self, *outputs: Path) -> list[Overview]:
        folders = dict.fromkeys(folder for place in outputs for folder in runs_below(place))
        told = [self.told(folder) for folder in folders]
        baselines: dict[str, list[Told]] = {}
        for each in told:
            if each.is_baseline:
                baselines.setdefault(each.task, []).append(each)
        found = [replace(each.overview, gap=self._gap(each, baselines.get(each.task, []))) for each in told]
        return _with_waiting(found, [each for place in outputs for each in _waiting_in(place)])

    def told(self, folder: RunFolder) -> Told:
        """What one folder says."""
        try:
            return self._read(folder)
        except Exception as error:  # whatever is wrong with one folder, the others are to be seen
            reason = str(error) or type(error).__name__
            return Told(Overview(str(folder.path), "unreadable", plain(reason)), folder)

    def _read(self, folder: RunFolder) -> Told:
        path = folder.path
        identity = (path / "config.yaml", path / "manifest.json")
        config, dataset, task, is_baseline = self._unless_kept(identity, lambda: _identity(folder))
        metrics = self._unless_kept((folder.metrics,), folder.last_metrics)
        score = self._unless_kept((folder.evals,), folder.last_score)
        best = self._unless_kept((folder.evals,), lambda: _best(folder, score), "best")
        status = folder.status()
        state = "starting" if _just_begun(path) else known("state", status["state"], STATES, f" in {path}/status.json")
        step = max(_whole(status.get("step")), metrics["step"] if metrics else 0)
        left = (config.max_steps - step) * metrics["step_time"] if metrics and state == "running" else None
        overview = Overview(
            path=str(path),
            state=state,
            message=plain(str(status.get("message") or (last_cause(folder) if state == "dead" else ""))),
            model_type=config.model_type,
            dataset=dataset,
            preset=config.preset,
            max_lr=config.max_lr,
            trial=config.trial,
            seed=config.seed,
            step=step,
            max_steps=config.max_steps,
            loss=metrics["loss"] if metrics else None,
            val_step=score["step"] if score else None,
            val_loss=score["loss"] if score else None,
            split=score.get("split", "val") if score else None,
            best_loss=best,
            tokens_per_second=metrics["tokens_per_second"] if metrics else None,
            seconds_left=left,
            device=status["device"] if isinstance(status.get("device"), str) else None,
            host=status.get("host"),
            pid=status.get("pid"),
        )
        return Told(overview, folder, task, is_baseline, score)

    def _gap(self, run: Told, baselines: Sequence[Told]) -> float | None:
        """How much worse the newest score is than the best baseline's at the same step, on the same tokens."""
        if run.score is None or run.is_baseline:
            return None
        losses = []
        for baseline in baselines:
            with suppress(UserError, OSError):  # a baseline with a damaged line is none at that step
                losses.append(self._loss_at(baseline, run.score))
        best = min((loss for loss in losses if loss is not None), default=None)
        return None if best is None else float(run.score["loss"] - best)

    def _loss_at(self, baseline: Told, score: dict[str, Any]) -> float | None:
        """The baseline's loss in the score that corresponds to another run's."""
        folder, own = baseline.folder, baseline.score
        if own and (own["step"], own["final"]) != (score["step"], score["final"]):
            step, final = score["step"], score["final"]
            own = None if final else self._unless_kept((folder.evals,), lambda: folder.score_at(step), step)
        if not own or own["tokens_scored"] != score["tokens_scored"]:
            return None
        return float(own["loss"])

    def _unless_kept(self, paths: tuple[Path, ...], read: Callable[[], T], what: object = None) -> T:
        """What is read from files, or was when they were last seen to be as they are."""
        key, stamp = (*paths, what), [_stamp(path) for path in paths]
        if key not in self._kept or self._kept[key][0] != stamp:
            self._kept[key] = (stamp, read())
        value: T = self._kept[key][1]
        return value


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return ()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _identity(folder: RunFolder) -> tuple[RunConfig, str, str, bool]:
    """The config, the corpus, what a run shares with its baseline, and whether it is one itself."""
    config, manifest = folder.identified()
    shared = {name: value for name, value in config.identity().items() if name not in MAY_DIFFER}
    task = repr([shared, sorted(manifest["data"]["sha256"].items())])
    return config, str(manifest["data"]["dataset"]), task, variants.name_of(config.variant) == "baseline"


def _best(folder: RunFolder, last: dict[str, Any] | None) -> float | None:
    """The lowest loss of the validations on the way; folders of the first versions do not have it in every line."""
    if last is None:
        return None
    if isinstance(best := last.get("best_loss"), float):
        return best
    return min((score["loss"] for score in folder.scores() if not score["final"]), default=None)


def _just_begun(path: Path) -> bool:
    """Whether a run has laid out its folder and is about to say that it lives."""
    age = time.time() - (path / "manifest.json").stat().st_mtime
    return age < DEAD_AFTER_SECONDS and not (path / "status.json").exists()


def plain(text: str) -> str:
    """One line, without what would move the cursor of a terminal."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())


def _whole(value: Any) -> int:
    return value if type(value) is int else 0


def _waiting_in(place: Path) -> list[Waiting]:
    """What queues have yet to start below a folder: their notices lie there, or further up."""
    inside = os.path.abspath(place)  # noqa: PTH100 (a link is to stay what it is)
    return [
        replace(each, run=str(place / os.path.relpath(each.run, inside)))
        for folder in (place, *place.parents)
        if (folder / NOTICES).is_dir()
        for each in waiting(folder)
        if _within(each.run, inside)
    ]


def _within(run: str, folder: str) -> bool:
    return os.path.commonpath([os.path.abspath(run), folder]) == folder  # noqa: PTH100


def _with_waiting(found: list[Overview], expected: list[Waiting]) -> list[Overview]:
    """Runs that a queue will start, or start again, are waiting, whatever they were before."""
    by_place = {os.path.abspath(each.path): each for each in found}  # noqa: PTH100
    for each in expected:
        place = os.path.abspath(each.run)  # noqa: PTH100
        new = Overview(each.run, "waiting", model_type=each.model_type, seed=each.seed, max_steps=each.max_steps)
        begun = by_place.get(place, new)
        if begun.state not in (*ACTIVE, "finished", "unreadable"):
            by_place[place] = replace(begun, state="waiting", message=each.why)
    return sorted(by_place.values(), key=lambda each: each.path)
