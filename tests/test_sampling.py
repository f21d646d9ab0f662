"""Samples: from the run folder alone, the same for the same seed."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.model.generate import generate
from oelm.model.gpt import GPT
from oelm.runfolder import RunFolder
from oelm.sampling import Sampling, sample
from oelm.training.loop import fit
from tests.conftest import oelm

Tiny = Callable[..., RunConfig]


def test_a_sample_begins_with_its_prompt_and_repeats_for_a_seed(tiny: Tiny) -> None:
    folder = fit(tiny())
    first = sample(folder, Sampling("One day, Nina", tokens=20, seed=1))
    assert first.startswith("One day, Nina")
    assert first == sample(folder, Sampling("One day, Nina", tokens=20, seed=1))
    assert first != sample(folder, Sampling("One day, Nina", tokens=20, seed=2))
    likeliest = Sampling("One", tokens=5, temperature=0)
    assert sample(folder, likeliest) == sample(folder, replace(likeliest, seed=9))
    longer_than_the_context = "One day, Nina went out. " * 30
    assert sample(folder, Sampling(longer_than_the_context, tokens=3)).startswith(longer_than_the_context)


def test_a_model_with_more_tokens_than_the_tokenizer_says_only_what_can_be_read(tiny: Tiny) -> None:
    folder = fit(tiny(vocab_size=20_000, max_steps=2, warmup_steps=1))  # as good as untrained: any token is as likely
    assert (folder.path / "samples" / "step-2.txt").read_text()
    assert sample(folder, Sampling("One", tokens=50, top_k=20_000, temperature=5.0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": math.nan}, "--temperature nan must be 0, or lie between"),
        ({"temperature": math.inf}, "--temperature inf must be"),
        ({"temperature": 1e-40}, "--temperature 1e-40 must be"),
        ({"temperature": -1.0}, "--temperature -1.0 must be"),
        ({"seed": -1}, "--seed -1 must lie between"),
        ({"seed": 2**64}, "--seed 18446744073709551616 must lie between"),
        ({"tokens": 0}, "--tokens 0 must lie between"),
        ({"tokens": 10**12}, "--tokens 1000000000000 must lie between 1 and 100,000"),
        ({"top_k": 0}, "--top_k 0 must lie between"),
        ({"prompt": "caf\udce9"}, "--prompt is not text in UTF-8"),
        ({"prompt": None}, "--prompt must be text, not None"),
        ({"tokens": "x"}, "--tokens must be a whole number, not 'x'"),
        ({"tokens": 2.5}, "--tokens must be a whole number, not 2.5"),
        ({"temperature": "warm"}, "--temperature must be a number, not 'warm'"),
        ({"tokens": True}, "--tokens must be a whole number, not True"),
        ({"best": "yes"}, "--best must be true or false, not 'yes'"),
    ],
)
def test_what_cannot_be_meant_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sampling(**values)


def test_numbers_may_be_numpys() -> None:
    numbers: dict[str, Any] = {"tokens": np.int32(5), "seed": np.int64(3), "temperature": np.float32(0.5), "top_k": 7}
    how = Sampling(**numbers)
    assert how == Sampling(tokens=5, seed=3, temperature=0.5, top_k=7)
    assert [type(getattr(how, name)) for name in numbers] == [int, int, float, int]


def test_a_model_that_has_diverged_babbles_but_does_not_fail(tiny: Tiny) -> None:
    model = GPT(tiny(vocab_size=100), seed=0)
    with torch.no_grad():
        model.tokens.weight.fill_(math.nan)
    assert len(generate(model, [0], 5, temperature=0.8, top_k=50, seed=0)) == 6


def test_the_run_folder_is_enough(tiny: Tiny, tmp_path: Path, storybook: Path) -> None:
    moved = tmp_path / "data"
    shutil.copytree(storybook, moved)
    folder = fit(tiny(data_path=str(moved)))
    shutil.rmtree(moved)
    assert sample(folder, Sampling("One", tokens=5))
    assert sample(folder, Sampling("One", tokens=5, best=True))


def test_several_runs_are_shown_side_by_side(tiny: Tiny, tmp_path: Path) -> None:
    for name in ("a", "b"):
        fit(tiny(out_dir=str(tmp_path / "runs" / name)))
    result = oelm("sample", str(tmp_path / "runs"), "--prompt", "One day", "--tokens", "5")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("One day") == 2


def test_a_damaged_checkpoint_is_passed_over_aloud(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fit(tiny())
    last, before = (folder.checkpoints / f"step-{step}" / "model.safetensors" for step in (20, 10))
    last.write_bytes(last.read_bytes()[:1000])
    (folder.checkpoints / "last").write_text("step-99")
    capsys.readouterr()
    assert sample(folder, Sampling("One", tokens=5))
    said = capsys.readouterr().err
    assert said.startswith(f"oelm: {last} cannot be loaded: ")
    assert said.endswith(f"; taking {before} instead\n")
    before.unlink()
    with pytest.raises(UserError, match=r"step-10.model\.safetensors cannot be loaded"):
        sample(folder, Sampling())


def test_what_is_not_there_is_named(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run folder"):
        sample(RunFolder(tmp_path), Sampling())
    folder = fit(tiny(max_steps=1, warmup_steps=1))
    (folder.checkpoints / "best.safetensors").unlink()
    with pytest.raises(UserError, match="has no best weights"):
        sample(folder, Sampling(best=True))
    shutil.rmtree(folder.checkpoints)
    with pytest.raises(UserError, match="has no checkpoint yet"):
        sample(folder, Sampling())
    (folder.path / "config.yaml").write_text("max_lr: -1\n")
    with pytest.raises(UserError, match=f"the run in {folder.path} cannot be read: --max_lr -1.0 is out of range"):
        sample(folder, Sampling())


def test_a_checkpoint_of_another_run_is_passed_over_aloud(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = fit(tiny(out_dir=str(tmp_path / "ours")))
    expected = sample(ours, Sampling("One", tokens=5))
    theirs = fit(tiny(max_lr=1e-2, out_dir=str(tmp_path / "theirs")))
    shutil.copytree(theirs.checkpoints / "step-20", ours.checkpoints / "step-25")
    assert sample(ours, Sampling("One", tokens=5)) == expected
    assert "step-25/model.safetensors cannot be loaded: it is of another run; taking" in capsys.readouterr().err
