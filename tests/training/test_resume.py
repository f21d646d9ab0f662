"""Killed at any moment and started again, a run ends with the same bytes as one never interrupted."""

from __future__ import annotations

import itertools
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from oelm.config import RunConfig
from oelm.errors import InterruptedRunError
from oelm.runfolder import RunFolder, read_lines
from oelm.training.loop import fit
from oelm.training.step import TorchEngine
from tests.conftest import flags_of

Tiny = Callable[..., RunConfig]
RUN = {"max_steps": 150, "save_interval": 3, "val_interval": 40, "dropout": 0.1, "model_type": "oelm_v2"}


def start(config: RunConfig) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "oelm", "train", *flags_of(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def final_bytes(folder: RunFolder) -> dict[str, bytes]:
    last = folder.checkpoints / f"step-{RUN['max_steps']}"
    files = [last / "model.safetensors", last / "optimizer.safetensors", folder.checkpoints / "best.safetensors"]
    return {path.name: path.read_bytes() for path in files}


def scores(folder: RunFolder) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in read_lines(folder.evals)]


def losses(folder: RunFolder) -> list[tuple[int, float]]:
    return [(record["step"], record["loss"]) for record in read_lines(folder.metrics)]


@pytest.fixture
def uninterrupted(tiny: Tiny, tmp_path: Path) -> RunFolder:
    process = start(tiny(**RUN, out_dir=str(tmp_path / "whole")))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return RunFolder(tmp_path / "whole")


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition() and process.poll() is None:
        time.sleep(0.001)


def moments(folder: RunFolder, rng: random.Random) -> Iterator[Callable[[], bool]]:
    """When to kill: at random steps, twice in the middle of writing a checkpoint, once while another is there."""

    def past(step: int) -> bool:
        lines = folder.metrics.read_text().count("\n") if folder.metrics.exists() else 0
        return lines * 5 >= step

    for _ in range(2):
        step = rng.randrange(5, 60)
        yield lambda step=step: past(step)  # type: ignore[misc]
    for _ in range(3):
        step = rng.randrange(60, 120)
        yield lambda step=step: past(step) and bool(list(folder.checkpoints.glob(".step-*.unfinished")))  # type: ignore[misc]


def test_sigkill_at_any_moment_loses_nothing(tiny: Tiny, uninterrupted: RunFolder, tmp_path: Path) -> None:
    config = tiny(**RUN, out_dir=str(tmp_path / "killed"))
    folder = RunFolder(tmp_path / "killed")
    seed = int(os.environ.get("OELM_KILL_SEED", time.time_ns() % 10**6))
    print(f"OELM_KILL_SEED={seed}")
    kills = 0
    for condition in moments(folder, random.Random(seed)):
        process = start(config)
        wait_until(condition, process)
        process.kill()
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
    assert kills >= 3
    process = start(config)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert final_bytes(folder) == final_bytes(uninterrupted)
    assert scores(folder) == scores(uninterrupted)
    assert losses(folder) == losses(uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_signal_saves_says_how_to_go_on_and_that_works(
    tiny: Tiny, uninterrupted: RunFolder, tmp_path: Path, number: signal.Signals
) -> None:
    folder = RunFolder(tmp_path / "a stopped run")
    process = start(tiny(**{**RUN, "save_interval": 1000}, out_dir=str(folder.path)))
    wait_until(folder.metrics.exists, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in output
    status = folder.status()
    assert status["state"] == "interrupted"
    assert f"after step {status['step']};" in status["message"]
    how = next(line for line in output.splitlines() if "To go on: oelm train" in line).partition("To go on: oelm ")[2]
    resumed = subprocess.run([sys.executable, "-m", "oelm", *shlex.split(how)], capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed from" in resumed.stdout
    assert final_bytes(folder) == final_bytes(uninterrupted)


def test_a_finished_run_is_left_alone(tiny: Tiny) -> None:
    folder = fit(tiny())
    before = {path: path.stat().st_mtime_ns for path in folder.checkpoints.rglob("*")}
    fit(tiny())
    assert {path: path.stat().st_mtime_ns for path in folder.checkpoints.rglob("*")} == before


def test_what_does_not_change_the_result_may_change_on_resume(tiny: Tiny, uninterrupted: RunFolder) -> None:
    """Half the run with one cadence, the rest with another."""
    config = tiny(**RUN, num_workers=0)
    process = start(config)
    folder = RunFolder(config.run_folder)
    wait_until(folder.metrics.exists, process)
    process.terminate()
    process.communicate()
    fit(tiny(**{**RUN, "val_interval": 25}, log_interval=7, num_workers=3))
    assert folder.status()["state"] == "finished"
    final = RUN["max_steps"]
    ours = (folder.checkpoints / f"step-{final}" / "model.safetensors").read_bytes()
    assert ours == final_bytes(uninterrupted)["model.safetensors"]


def test_a_stop_in_a_score_and_a_kill_after_it_leave_no_record_twice(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the validation of step 10, whose checkpoint says that it is due; then gone right after it."""
    fields = {"max_steps": 20, "log_interval": 5, "save_interval": 1000}
    whole = fit(tiny(**fields, out_dir=str(tmp_path / "whole")))
    config = tiny(**fields, out_dir=str(tmp_path / "stopped"))
    folder = RunFolder(config.run_folder)

    class GoneError(BaseException):
        """As good as a kill: nothing is saved any more."""

    def stop_in_score(engine: TorchEngine, inputs: Tensor, targets: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return torch.zeros(())

    def die_at_12(engine: TorchEngine, step: int) -> None:
        if step == 12:
            raise GoneError
        train(engine, step)

    train = TorchEngine.step
    with monkeypatch.context() as patch:
        patch.setattr(TorchEngine, "score", stop_in_score)
        patch.setattr(TorchEngine, "scored_tokens", 32)
        with pytest.raises(InterruptedRunError):
            fit(config)
    with monkeypatch.context() as patch:
        patch.setattr(TorchEngine, "step", die_at_12)
        with pytest.raises(GoneError):
            fit(config)
    fit(config)
    assert scores(folder) == scores(whole)
    assert losses(folder) == losses(whole)


def test_a_killed_run_reads_as_dead_and_a_live_one_as_running(tiny: Tiny) -> None:
    config = tiny(**{**RUN, "max_steps": 5000})
    folder = RunFolder(config.run_folder)
    process = start(config)
    wait_until(folder.metrics.exists, process)
    assert folder.status()["state"] == "running"
    process.kill()
    process.wait()
    assert folder.status()["state"] == "dead"
    assert json.loads((folder.path / "status.json").read_text())["state"] == "running"


def test_two_processes_cannot_train_in_one_folder(tiny: Tiny) -> None:
    config = tiny(**{**RUN, "max_steps": 5000})
    first = start(config)
    wait_until(RunFolder(config.run_folder).metrics.exists, first)
    second = start(config)
    output, _ = second.communicate(timeout=60)
    first.kill()
    first.wait()
    assert second.returncode == 2
    assert "another process is training in" in output


@pytest.mark.parametrize("call", [1, 3, 9])
def test_a_signal_in_the_middle_of_a_score_is_heeded_and_the_score_is_given_later(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The signal comes from within the scoring of a batch: on the way, on the way again, and in the final score."""
    fields = {"max_steps": 20, "log_interval": 4, "val_tokens": 20_000}
    whole = fit(tiny(**fields, out_dir=str(tmp_path / "whole")))
    score, calls = TorchEngine.score, itertools.count(1)

    def signalling(engine: TorchEngine, inputs: Tensor, targets: Tensor) -> Tensor:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return score(engine, inputs, targets)

    monkeypatch.setattr(TorchEngine, "score", signalling)
    monkeypatch.setattr(TorchEngine, "scored_tokens", 5_000)
    config = tiny(**fields, out_dir=str(tmp_path / "stopped"))
    with pytest.raises(InterruptedRunError, match="stopped by SIGTERM"):
        fit(config)
    stopped = RunFolder(config.run_folder)
    assert stopped.status()["state"] == "interrupted"
    fit(config)
    last = "step-20/model.safetensors"
    assert (stopped.checkpoints / last).read_bytes() == (whole.checkpoints / last).read_bytes()
    assert [step for step, _ in scores(stopped)] == [step for step, _ in scores(whole)]
    assert [loss for _, loss in scores(stopped)] == pytest.approx([loss for _, loss in scores(whole)], rel=1e-6)
    assert losses(stopped) == losses(whole)
