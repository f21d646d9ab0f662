"""The page of results says what the kept runs say, and what has not been run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from experiments import page
from experiments.run import run
from oelm.analysis.compare import compare_all
from oelm.errors import UserError
from oelm.runfolder import find_runs

MATRIX = """variants: [baseline, oelm_v2, headwise+lowrank(2), zero+lowrank(2)]
learning_rates: [1e-3, 1e-2]
seeds: 2
settings:
  {d_model: 16, seq_len: 16, num_layers: 1, batch_size: 4, max_steps: 4, val_tokens: 512, log_interval: 2, device: cpu}
"""


@pytest.fixture(scope="module")
def study(storybook: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The matrices of the study, the last of them a small one whose runs are kept."""
    folder = tmp_path_factory.mktemp("study")
    for matrix in page.MATRICES.glob("*.yaml"):
        shutil.copy(matrix, folder)
    (folder / "nano.yaml").write_text(MATRIX)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run([Path("nano.yaml")], Path("results"), storybook.parent) == 0
    return folder


@pytest.fixture
def results(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is kept, for a test to do with as it likes."""
    shutil.copytree(study, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name, place in {"RESULTS": "results", "PAGE": "results.md", "REPORTS": "reports", "MATRICES": "."}.items():
        monkeypatch.setattr(page, name, Path(place))
    return Path("results")


def test_the_page_holds_the_comparison_the_controls_and_what_is_missing(results: Path) -> None:
    page.main()
    text = page.PAGE.read_text()
    (comparison,) = compare_all(find_runs([results]))
    for row in comparison.quality[1]:
        assert f"| {' | '.join(row)} |" in text
    assert "8 runs that served to find a learning rate are not counted" in text
    assert "| what the frozen matrix brings under its correction | zero+lowrank(2) → headwise+lowrank(2) | " in text
    assert "| variant | 0.001 | 0.01 | seed 0 | seed 1 |" in text
    finals = [run.final_eval() for run in find_runs([results / "nano" / "oelm_v2"])]
    entropy = sum(final["attention_entropy"][0] for final in finals if final) / len(finals)
    assert f"| OELM-Freeze | {entropy:.2f} |" in text
    assert "| OELM-Freeze | never | never | never | never |" in text
    missing = text.partition("## Not run yet")[2]
    assert "48 of 48 runs: `python -m experiments.run experiments/ablation-rope.yaml`" in missing
    assert "experiments/nano.yaml" not in missing
    assert "oelm probe" in missing
    assert (page.REPORTS / "nano.md").exists()


def test_a_study_half_done_is_said_to_be_half_done(results: Path) -> None:
    shutil.rmtree(results / "nano" / "oelm_v2")
    shutil.rmtree(results / "nano" / "tuning" / "oelm_v2" / "lr-0.001")
    text = page.render()
    assert "3 of 16 runs: `python -m experiments.run experiments/nano.yaml`" in text.partition("## Not run yet")[2]
    assert "| OELM-Freeze | – | never | – | – |" in text
    for arm in page.Study("nano").arms:
        shutil.rmtree(arm.folder, ignore_errors=True)
    text = page.render()
    assert "## The study in small" not in text
    assert "9 of 16 runs" in text


def test_runs_of_another_version_of_the_matrix_are_refused(results: Path) -> None:
    matrix = page.MATRICES / "nano.yaml"
    matrix.write_text(matrix.read_text().replace("max_steps: 4", "max_steps: 5"))
    with pytest.raises(UserError, match=r"holds another run \(max_steps: 4 there, 5 now"):
        page.render()


def test_a_run_that_is_none_of_the_studys_is_refused(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(results / "nano" / "oelm_v2", results / "nano" / "oelm_v9")
    with pytest.raises(SystemExit) as ended:
        page.main()
    assert ended.value.code == 2
    assert "is no run of experiments/nano.yaml; remove it" in capsys.readouterr().err
    assert not page.PAGE.exists()
