"""Trackers mirror the run folder; whatever becomes of them, the run goes on."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.runfolder import RunFolder, read_lines
from oelm.training import track
from oelm.training.loop import fit
from oelm.training.observe import Observer
from oelm.training.run import Run

Tiny = Callable[..., RunConfig]
StandIn = Callable[..., Callable[[], list[tuple[str, Any]]]]


class Notes(Observer):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def curves(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a run."""
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def as_recorded(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    metrics, scores = read_lines(folder.metrics), folder.scores()
    wanted = {f"train/{name}": [(line["step"], line[name]) for line in metrics] for name in track.TRAIN}
    for kind, final in (("val", False), ("final", True)):
        for name in track.SCORE:
            wanted[f"{kind}/{name}"] = [(line["step"], line[name]) for line in scores if line["final"] == final]
    return wanted


def assert_same(shown: dict[str, list[tuple[int, float]]], wanted: dict[str, list[tuple[int, float]]]) -> None:
    assert shown.keys() == wanted.keys()
    for tag, points in wanted.items():
        assert [step for step, _ in shown[tag]] == [step for step, _ in points], tag
        assert [value for _, value in shown[tag]] == pytest.approx([value for _, value in points]), tag


def test_tensorboard_shows_what_was_recorded(tiny: Tiny) -> None:
    folder = fit(tiny())
    assert_same(curves(folder), as_recorded(folder))
    assert "tensorboard" in folder.records()


def test_a_resumed_run_s_curves_do_not_fold_back(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """It breaks down after step 17, goes on from the checkpoint at 10, and says 11 to 15 once more."""
    train = Run.train

    def breaking(run: Run) -> None:
        if run.step == 17:
            raise RuntimeError("pulled the plug")
        train(run)

    monkeypatch.setattr(Run, "train", breaking)
    with pytest.raises(RuntimeError):
        fit(tiny(log_interval=1))
    monkeypatch.undo()
    folder = fit(tiny(log_interval=1))
    assert len(list((folder.path / "tensorboard").iterdir())) == 2
    assert_same(curves(folder), as_recorded(folder))


def test_a_tensorboard_that_cannot_be_written_is_said_once_and_the_run_goes_on(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(board: track.TensorBoard, step: int, values: dict[str, float]) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(track.TensorBoard, "log", full)
    notes = Notes()
    folder = fit(tiny(), notes)
    assert folder.status()["state"] == "finished"
    (note,) = (line for line in notes.lines if "TensorBoard" in line)
    assert note == "TensorBoard gets nothing from here on: [Errno 5] Input/output error"
    assert note in (folder.path / "training.log").read_text()


STAND_IN = """
import json, pathlib
FAILS = {fails!r}
def _call(called, /, **what):
    with pathlib.Path({record!r}).open("a") as file:
        print(json.dumps([called, what]), file=file)
    if called == FAILS:
        raise {error}("the service is\\ndown")
def init(**what): _call("init", **what)
def log(values, step): _call("log", values=values, step=step)
def finish(): _call("finish")
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Installs a module that plays a tracker, fails where it is told to, and writes down its calls."""

    def install(name: str, fails: str = "", error: str = "RuntimeError") -> Callable[[], list[tuple[str, Any]]]:
        record = tmp_path / "calls.jsonl"
        (tmp_path / "modules").mkdir()
        module = STAND_IN.format(fails=fails, record=str(record), error=error)
        (tmp_path / "modules" / f"{name}.py").write_text(module)
        monkeypatch.syspath_prepend(tmp_path / "modules")
        monkeypatch.delitem(sys.modules, name, raising=False)
        return lambda: [tuple(json.loads(line)) for line in record.read_text().splitlines()]

    yield install
    for name in ("trackio", "wandb"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_a_tracker_hears_what_was_recorded(name: str, tiny: Tiny, stand_in: StandIn) -> None:
    calls = stand_in(name)
    config = tiny(track=name)
    folder = fit(config)
    (first, about), *logged, last = calls()
    assert (first, last) == ("init", ("finish", {}))
    assert about["project"] == "oelm"
    assert about["resume"] == "allow"
    assert about["name"].endswith("/run")
    assert about["config"]["max_lr"] == config.max_lr
    assert ("id" in about) == (name == "wandb")
    heard: dict[str, list[tuple[int, float]]] = {}
    for call, what in logged:
        assert call == "log"
        for tag, value in what["values"].items():
            heard.setdefault(tag, []).append((what["step"], value))
    assert_same(heard, as_recorded(folder))


@pytest.mark.parametrize(
    ("fails", "error"), [("init", "RuntimeError"), ("log", "SystemExit"), ("finish", "RuntimeError")]
)
def test_a_tracker_that_fails_is_said_once_and_the_run_goes_on(
    fails: str, error: str, tiny: Tiny, stand_in: StandIn
) -> None:
    calls = stand_in("wandb", fails, error)
    notes = Notes()
    folder = fit(tiny(track="wandb"), notes)
    assert folder.status()["state"] == "finished"
    assert [line for line in notes.lines if "wandb" in line] == ["wandb gets nothing from here on: the service is down"]
    assert [name for name, _ in calls()].count(fails) == 1
    assert_same(curves(folder), as_recorded(folder))


@pytest.mark.parametrize("leftover", [False, True])
def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_done(
    leftover: bool, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a folder of that name lies about, as wandb leaves them."""
    if leftover:
        (tmp_path / "here" / "wandb").mkdir(parents=True)
        monkeypatch.syspath_prepend(tmp_path / "here")
    else:
        monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="--track wandb: it is not installed; pip install wandb"):
        fit(tiny(track="wandb"))
    assert not (tmp_path / "run").exists()
