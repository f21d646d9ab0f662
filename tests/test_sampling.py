"""Samples: from the run folder alone, the same for the same seed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.runfolder import RunFolder
from oelm.sampling import sample
from oelm.training.loop import fit
from tests.conftest import oelm

Tiny = Callable[..., RunConfig]


def test_a_sample_begins_with_its_prompt_and_repeats_for_a_seed(tiny: Tiny) -> None:
    folder = fit(tiny())
    first = sample(folder, "One day, Nina", tokens=20, seed=1)
    assert first.startswith("One day, Nina")
    assert first == sample(folder, "One day, Nina", tokens=20, seed=1)
    assert first != sample(folder, "One day, Nina", tokens=20, seed=2)
    assert sample(folder, "One", tokens=5, temperature=0) == sample(folder, "One", tokens=5, temperature=0, seed=9)


def test_the_run_folder_is_enough(tiny: Tiny, tmp_path: Path, storybook: Path) -> None:
    moved = tmp_path / "data"
    shutil.copytree(storybook, moved)
    folder = fit(tiny(data_path=str(moved)))
    shutil.rmtree(moved)
    assert sample(folder, "One", tokens=5)
    assert sample(folder, "One", tokens=5, best=True)


def test_several_runs_are_shown_side_by_side(tiny: Tiny, tmp_path: Path) -> None:
    for name in ("a", "b"):
        fit(tiny(out_dir=str(tmp_path / "runs" / name)))
    result = oelm("sample", str(tmp_path / "runs"), "--prompt", "One day", "--tokens", "5")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("One day") == 2


def test_what_has_no_checkpoint_or_is_damaged_is_named(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        sample(RunFolder(tmp_path))
    folder = fit(tiny())
    path = folder.checkpoints / "step-20" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"model\.safetensors cannot be loaded"):
        sample(folder)
