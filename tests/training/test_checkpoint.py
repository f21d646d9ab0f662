"""Checkpoints: whole or not there, the newest good one found, nothing executed from a file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.model import orthogonal
from oelm.runfolder import RunFolder
from oelm.training import audit, checkpoint
from oelm.training.loop import fit
from oelm.training.observe import Observer
from oelm.training.step import TorchEngine

Tiny = Callable[..., RunConfig]


class Notes(Observer):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def train_to(config: RunConfig) -> RunFolder:
    """Trains, and makes the run look as if it had been killed right after its last checkpoint."""
    folder = fit(config)
    (folder.path / "status.json").write_text(json.dumps({"state": "running", "heartbeat": 0, "pid": 1, "host": ""}))
    return folder


def weights(folder: RunFolder, step: int) -> bytes:
    return (folder.checkpoints / f"step-{step}" / "model.safetensors").read_bytes()


def test_the_newest_two_are_kept_with_a_pointer_and_the_best_weights(tiny: Tiny) -> None:
    folder = fit(tiny(max_steps=40))
    assert sorted(p.name for p in folder.checkpoints.iterdir()) == ["best.safetensors", "last", "step-30", "step-40"]
    assert checkpoint.last(folder.checkpoints) == folder.checkpoints / "step-40"


def test_a_checkpoint_holds_the_logical_model(tiny: Tiny) -> None:
    folder = fit(tiny(model_type="oelm_v2"))
    saved = load_file(folder.checkpoints / "step-20" / "model.safetensors")
    assert {f"blocks.0.attention.{side}.weight" for side in "qkvo"} <= saved.keys()
    assert saved["tokens.weight"].shape == (1024, 32)
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}
    moments = load_file(folder.checkpoints / "step-20" / "optimizer.safetensors")
    assert not any(".attention.q." in name or ".attention.k." in name for name in moments)
    assert "blocks.0.attention.v.weight.exp_avg" in moments


def another_seed_s(folder: RunFolder, other: RunFolder) -> str:
    shutil.rmtree(folder.checkpoints / "step-20")
    shutil.copytree(other.checkpoints / "step-20", folder.checkpoints / "step-20")
    return "step-20 cannot be used: it is of another run"


def renamed(folder: RunFolder, other: RunFolder) -> str:
    (folder.checkpoints / "step-20").rename(folder.checkpoints / "step-25")
    return "step-25 cannot be used: it is of step 20, whatever its name says"


def with_the_state_of_another(folder: RunFolder, other: RunFolder) -> str:
    shutil.copy(*(folder.checkpoints / f"step-{step}" / "state.json" for step in (10, 20)))
    return "step-20 cannot be used: it is of step 10, whatever its name says"


@pytest.mark.parametrize("change", [another_seed_s, renamed, with_the_state_of_another])
def test_a_checkpoint_that_is_not_this_runs_of_this_step_is_passed_over(
    tiny: Tiny, tmp_path: Path, change: Callable[[RunFolder, RunFolder], str]
) -> None:
    folder, other = train_to(tiny()), fit(tiny(seed=1, out_dir=str(tmp_path / "other")))
    expected = weights(folder, 20)
    message, notes = change(folder, other), Notes()
    fit(tiny(), notes)
    assert any(message in line for line in notes.lines)
    assert weights(folder, 20) == expected


def test_going_back_to_another_runs_checkpoint_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    folder, other = fit(tiny()), fit(tiny(seed=1, out_dir=str(tmp_path / "other")))
    another_seed_s(folder, other)
    with pytest.raises(UserError, match=r"--resume .*step-20 cannot be used: it is of another run"):
        fit(tiny(resume=str(folder.checkpoints / "step-20")))


@pytest.mark.parametrize("broken", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_checkpoint_cut_short_is_passed_over_aloud_and_the_run_ends_the_same(tiny: Tiny, broken: str) -> None:
    folder = train_to(tiny())
    expected = weights(folder, 20)
    path = folder.checkpoints / "step-20" / broken
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    notes = Notes()
    fit(tiny(), notes)
    assert any("step-20 cannot be used: cut short or damaged" in line for line in notes.lines)
    assert any(line.endswith("step-10") for line in notes.lines)
    assert weights(folder, 20) == expected
    assert (folder.checkpoints / "damaged-step-20").exists()


def test_a_checkpoint_of_another_shape_is_passed_over(tiny: Tiny, tmp_path: Path) -> None:
    folder = train_to(tiny())
    other = fit(tiny(d_ff=128, out_dir=str(tmp_path / "other")))
    for name in ("model.safetensors", "optimizer.safetensors"):
        (folder.checkpoints / "step-20" / name).write_bytes((other.checkpoints / "step-20" / name).read_bytes())
    notes = Notes()
    fit(tiny(), notes)
    assert any("blocks.0.mlp.down.weight has the shape (32, 128) instead of (32, 64)" in line for line in notes.lines)


def test_step_times_of_another_shape_are_passed_over(tiny: Tiny) -> None:
    folder = train_to(tiny())
    save_file({"step_times": torch.zeros(2, 2)}, folder.checkpoints / "step-20" / "clock.safetensors")
    notes = Notes()
    fit(tiny(), notes)
    assert any("step_times is no list of times" in line for line in notes.lines)


@pytest.mark.parametrize("content", ["[]", "null", '{"step": 20}'])
def test_a_state_that_is_json_but_no_state_is_passed_over(tiny: Tiny, content: str) -> None:
    folder = train_to(tiny())
    (folder.checkpoints / "step-20" / "state.json").write_text(content)
    notes = Notes()
    fit(tiny(), notes)
    assert any("step-20 cannot be used" in line for line in notes.lines)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clock": "x"},
        {"since_log": 7},
        {"since_log": [[1.0]]},
        {"best": "x"},
        {"clock": {"seconds": {}, "validations": 0}},
        {"due": 1},
        {"run_id": None},
    ],
)
def test_a_state_of_wrong_content_is_passed_over(tiny: Tiny, wrong: dict[str, object]) -> None:
    folder = train_to(tiny())
    path = folder.checkpoints / "step-20" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    notes = Notes()
    fit(tiny(), notes)
    assert any("step-20 cannot be used" in line for line in notes.lines)


def test_an_optimiser_of_another_variant_is_passed_over(tiny: Tiny, tmp_path: Path) -> None:
    folder = train_to(tiny(model_type="oelm_v2"))
    other = fit(tiny(out_dir=str(tmp_path / "other")))
    name = "step-20/optimizer.safetensors"
    (folder.checkpoints / name).write_bytes((other.checkpoints / name).read_bytes())
    notes = Notes()
    fit(tiny(model_type="oelm_v2"), notes)
    assert any("attention.k.weight.exp_avg has the shape (32, 32) instead of None" in line for line in notes.lines)


def test_a_checkpoint_whose_frozen_matrix_changed_is_passed_over(tiny: Tiny) -> None:
    from safetensors.torch import save_file

    folder = train_to(tiny(model_type="oelm_v2"))
    path = folder.checkpoints / "step-20" / "model.safetensors"
    saved = load_file(path)
    saved["blocks.1.attention.k.weight"][3, 3] += 1e-6
    save_file(saved, path)
    notes = Notes()
    fit(tiny(model_type="oelm_v2"), notes)
    assert any("blocks.1.attention.k.weight is not the one that was frozen" in line for line in notes.lines)


def test_when_no_checkpoint_is_good_nothing_is_overwritten(tiny: Tiny) -> None:
    folder = train_to(tiny())
    for step in (10, 20):
        (folder.checkpoints / f"step-{step}" / "state.json").write_text("")
    for _ in range(2):  # and asking again changes nothing
        with pytest.raises(UserError, match="none of the checkpoints"):
            fit(tiny())
    assert (folder.checkpoints / "step-20" / "model.safetensors").exists()


def test_a_run_can_go_back_to_a_checkpoint(tiny: Tiny) -> None:
    folder = train_to(tiny())
    expected = weights(folder, 20)
    notes = Notes()
    fit(tiny(resume=str(folder.checkpoints / "step-10")), notes)
    assert any("resumed from" in line and line.endswith("step-10") for line in notes.lines)
    assert weights(folder, 20) == expected


def test_a_finished_run_can_go_back_too_and_ends_the_same(tiny: Tiny) -> None:
    folder = fit(tiny())
    expected, scores = (
        weights(folder, 20),
        [(score["step"], score["final"], score["loss"]) for score in folder.scores()],
    )
    fit(tiny(resume=str(folder.checkpoints / "step-10")))
    assert weights(folder, 20) == expected
    assert [(score["step"], score["final"], score["loss"]) for score in folder.scores()] == scores


@pytest.mark.parametrize("wrong", ["..", "step-20-backup", "step-99", "damaged-step-20"])
def test_going_back_to_what_is_no_checkpoint_is_refused_and_changes_nothing(tiny: Tiny, wrong: str) -> None:
    folder = fit(tiny())
    for copy in ("step-20-backup", "damaged-step-20"):
        shutil.copytree(folder.checkpoints / "step-20", folder.checkpoints / copy)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"is not a checkpoint of .*; it has: step-20, step-10"):
        fit(tiny(resume=str(folder.checkpoints / wrong)))
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before


def test_going_back_in_a_run_without_checkpoints_is_refused_and_changes_nothing(tiny: Tiny) -> None:
    folder = fit(tiny(model_type="oelm_v2"))
    shutil.rmtree(folder.checkpoints)
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"is not a checkpoint of .*; it has: none"):
        fit(tiny(model_type="oelm_v2", log_interval=7, resume=str(folder.checkpoints / "step-10")))
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before


def test_a_checkpoint_may_be_damaged_again(tiny: Tiny) -> None:
    folder = train_to(tiny())
    for name in ("damaged-step-20", "damaged-step-20-2"):
        (folder.checkpoints / "step-20" / "state.json").write_text("")
        (folder.path / "status.json").unlink()
        fit(tiny())
        assert (folder.checkpoints / name).exists()
    assert folder.status()["state"] == "finished"


def test_going_back_in_a_folder_without_a_run_is_refused_and_makes_none(tiny: Tiny, tmp_path: Path) -> None:
    folder = fit(tiny())
    with pytest.raises(UserError, match=r"there is no run in .* to go back in"):
        fit(tiny(out_dir=str(tmp_path / "new"), resume=str(folder.checkpoints / "step-10")))
    assert not (tmp_path / "new").exists()


class GoneError(BaseException):
    """As good as a kill."""


def test_going_back_forgets_the_best_weights_of_the_future_until_they_come_again(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fit(tiny())
    best = folder.checkpoints / "best.safetensors"
    assert checkpoint.about_best(best)["step"] == 20
    expected = best.read_bytes()

    def die(engine: TorchEngine, step: int) -> None:
        raise GoneError

    with monkeypatch.context() as patch:
        patch.setattr(TorchEngine, "step", die)
        with pytest.raises(GoneError):
            fit(tiny(resume=str(folder.checkpoints / "step-10")))
    assert [score["step"] for score in folder.scores()] == [10]
    assert not best.exists()
    fit(tiny())
    assert best.read_bytes() == expected


def test_the_best_weights_of_the_past_stay(tmp_path: Path) -> None:
    checkpoint.save_best(tmp_path, {"w": torch.ones(1)}, {"run_id": "a", "step": 10, "val_loss": 1.0})
    checkpoint.forget_best(tmp_path, 10)
    assert (tmp_path / "best.safetensors").exists()
    checkpoint.forget_best(tmp_path, 9)
    assert not (tmp_path / "best.safetensors").exists()


def test_a_run_without_a_checkpoint_begins_anew_on_another_machine(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """There QR has other last bits; weights that were best before are forgotten, and what is frozen is noted anew."""
    config = tiny(model_type="oelm_v2", val_interval=5, save_interval=10)
    step = TorchEngine.step

    def die_at_8(engine: TorchEngine, number: int) -> None:
        if number == 8:
            raise GoneError
        step(engine, number)

    with monkeypatch.context() as patch:
        patch.setattr(TorchEngine, "step", die_at_8)
        with pytest.raises(GoneError):
            fit(config)
    draw = orthogonal.orthonormal_columns
    monkeypatch.setattr(orthogonal, "orthonormal_columns", lambda *given: draw(*given) * (1 + 3e-7))
    folder = fit(config)
    assert folder.status()["state"] == "finished"
    assert all(finding.intact for finding in audit.findings(folder))
