"""How a learning rate was chosen is computed from the runs that chose it, and a wrong claim is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from oelm.config import RunConfig
from oelm.errors import RunFailedError, UserError
from oelm.runfolder import RunFolder
from oelm.training.loop import fit
from oelm.training.tuning import choice

Tiny = Callable[..., RunConfig]
RATES = (1e-4, 3e-3, 1e-2)


@pytest.fixture
def grid(tiny: Tiny, tmp_path: Path) -> Callable[..., list[RunFolder]]:
    """A grid of short runs, a rate each, in tmp_path/grid."""

    def train(**changes: object) -> list[RunFolder]:
        return [
            fit(tiny(**{"max_lr": rate, "seed": 7, "max_steps": 6, "out_dir": f"{tmp_path}/grid/{rate}", **changes}))
            for rate in RATES
        ]

    return train


def test_the_manifest_says_what_the_rate_was_chosen_among(
    tiny: Tiny, tmp_path: Path, grid: Callable[..., list[RunFolder]]
) -> None:
    trials = grid()
    losses = [final["loss"] for trial in trials if (final := trial.final_eval())]
    best = RATES[losses.index(min(losses))]
    said = fit(tiny(max_lr=best, tuned_from=str(tmp_path / "grid"))).manifest()["learning_rate"]
    assert said["value"] == best
    assert said["grid"] == list(RATES)
    assert said["losses"] == losses
    assert said["budget_steps"] == 18
    assert said["run_ids"] == [trial.manifest()["run_id"] for trial in trials]
    assert said["at_edge"] == (best in (RATES[0], RATES[-1]))
    assert said["how"] == "the best of 3 rates by validation loss after 6 steps each"
    other = RATES[losses.index(max(losses))]
    with pytest.raises(UserError, match=f"the best rate there is {best:g}, not --max_lr {other:g}"):
        fit(tiny(max_lr=other, tuned_from=str(tmp_path / "grid"), out_dir=str(tmp_path / "other")))


def test_runs_of_another_kind_prove_nothing(tiny: Tiny, tmp_path: Path, grid: Callable[..., list[RunFolder]]) -> None:
    grid(model_type="oelm_v2")
    with pytest.raises(UserError, match="is of another kind; it differs in model_type"):
        fit(tiny(tuned_from=str(tmp_path / "grid")))
    with pytest.raises(UserError, match="is of another kind; it differs in min_lr"):
        fit(tiny(model_type="oelm_v2", min_lr=0.0, tuned_from=str(tmp_path / "grid")))
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_a_rate_that_diverged_has_lost(tiny: Tiny, tmp_path: Path) -> None:
    good = fit(tiny(max_lr=1e-3, max_steps=5, out_dir=str(tmp_path / "good")))
    with pytest.raises(RunFailedError):
        fit(tiny(max_lr=100.0, grad_clip=0, max_steps=300, warmup_steps=0, decay="all", out_dir=str(tmp_path / "bad")))
    chosen = choice([good, RunFolder(tmp_path / "bad")])
    assert chosen.best == 1e-3
    assert chosen.record()["losses"][1] is None
    with pytest.raises(UserError, match="every rate of the grid diverged: 100"):
        choice([RunFolder(tmp_path / "bad")]).best  # noqa: B018


def test_an_unfinished_trial_is_no_trial(tiny: Tiny) -> None:
    folder = fit(tiny(max_steps=2, warmup_steps=1))
    status = json.loads((folder.path / "status.json").read_text())
    (folder.path / "status.json").write_text(json.dumps({**status, "state": "interrupted"}))
    with pytest.raises(UserError, match=r"not finished \(interrupted\)"):
        choice([folder])
