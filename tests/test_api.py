"""The verbs as functions: runs in any form, and mistakes named as on the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import oelm
from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.runfolder import RunFolder
from oelm.training.loop import fit


@pytest.fixture
def folder(tiny: Callable[..., RunConfig], tmp_path: Path) -> RunFolder:
    return fit(tiny(max_steps=2, warmup_steps=1, out_dir=str(tmp_path / "runs" / "one")))


def test_runs_may_be_named_in_any_form(folder: RunFolder) -> None:
    texts = {
        oelm.sample(runs, prompt="One", tokens=5)
        for runs in (folder, folder.path, str(folder.path), [folder], folder.path.parent)
    }
    assert len(texts) == 1
    assert str(oelm.compare(folder)) == str(oelm.compare([folder.path]))


def test_a_wrong_option_is_named(folder: RunFolder) -> None:
    with pytest.raises(UserError, match="--tokens must be a whole number, not 'x'"):
        oelm.sample(folder, tokens="x")
    with pytest.raises(UserError, match=r"unknown option 'tokns': did you mean tokens\?"):
        oelm.sample(folder, tokns=5)
    with pytest.raises(UserError, match=r"unknown field 'max_step': did you mean max_steps\?"):
        oelm.train(max_step=5)
    with pytest.raises(UserError, match="nowhere is no run folder"):
        oelm.compare("nowhere")
    with pytest.raises(UserError, match=r"unknown field 'max_step': did you mean max_steps\?"):
        oelm.train(RunConfig(), max_step=5)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: oelm.train(3), "config must be an oelm.RunConfig or the path of a YAML file, not 3"),  # type: ignore[arg-type]
        (lambda: oelm.train(RunConfig(), preset="mini"), "already fixes preset: nano, so --preset mini could not"),
        (lambda: oelm.compare(None), "runs must be a run, or several, not None"),  # type: ignore[arg-type]
        (lambda: oelm.prepare("storybook", data_dir=3), "data_dir must be a path, not 3"),
        (lambda: oelm.prepare("storybook", overwrite="no"), "overwrite must be true or false, not 'no'"),
        (lambda: oelm.prepare("mine", source=3), "source must be a path or several, not 3"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_another_kind_is_named(mistake: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        mistake()
