"""The study's runs: each is done once, whatever time there is, and what is kept of it can be judged."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

import experiments
from experiments.run import run
from oelm.analysis.compare import compare
from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.runfolder import RunFolder, find_runs
from oelm.runs.matrix import read_matrix
from oelm.training.loop import fit

MATRIX = """variants: [baseline, oelm_v2]
learning_rates: [1e-3, 1e-2]
seeds: 2
settings:
  d_model: 16
  seq_len: 16
  num_layers: 1
  batch_size: 4
  max_steps: 8
  val_tokens: 512
  log_interval: 4
  device: cpu
  final_split: test
"""


def test_what_is_kept_is_not_run_again_and_can_be_compared(
    storybook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    matrix, results, archive = tmp_path / "m.yaml", tmp_path / "results", tmp_path / "kept.tar"
    matrix.write_text(MATRIX)
    assert run([matrix], results, storybook.parent, minutes=0.1, archive=None) == 7
    assert run([matrix], results, storybook.parent, minutes=60, archive=archive, part=(2, 2)) == 0
    assert {path.parent.parent.name for path in results.rglob("seed-1/manifest.json")} == {"oelm_v2"}
    assert run([matrix], results, storybook.parent, minutes=60, archive=archive) == 0
    comparison = compare(find_runs([results]))
    assert [(row.model_type, row.seeds) for row in comparison.rows] == [("baseline", (0, 1)), ("oelm_v2", (0, 1))]
    assert "4 runs that served to find a learning rate are not counted" in comparison.warnings
    assert "tokens of test" in comparison.task
    assert all(result.tuning["grid"] == [1e-3, 1e-2] for row in comparison.rows for result in row.results)
    assert not list(results.rglob("checkpoints"))
    assert max(path.stat().st_size for path in results.rglob("*") if path.is_file()) < 10_000
    assert all(folder.config().run_folder == folder.path for folder in find_runs([results]))
    assert not list((tmp_path / "outputs").iterdir())
    with tarfile.open(archive) as tar:
        assert "results/m/oelm_v2/seed-1/evals.jsonl" in tar.getnames()
    times = {path: path.stat().st_mtime_ns for path in results.rglob("manifest.json")}
    assert run([matrix], results, storybook.parent, minutes=60, archive=archive) == 0
    assert {path: path.stat().st_mtime_ns for path in results.rglob("manifest.json")} == times
    assert capsys.readouterr().out.rstrip().endswith("nothing is left to run")


def test_what_is_kept_of_another_matrix_is_not_taken_for_this_ones(
    storybook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = tmp_path / "m.yaml"
    matrix.write_text(MATRIX.replace("[1e-3, 1e-2]", "1e-3"))
    run([matrix], tmp_path / "results", storybook.parent, minutes=60, archive=None)
    matrix.write_text(matrix.read_text().replace("max_steps: 8", "max_steps: 9"))
    with pytest.raises(UserError, match=r"holds another run .*max_steps: 8 there, 9 now"):
        run([matrix], tmp_path / "results", storybook.parent, minutes=60, archive=None)


def test_runs_at_the_best_rate_of_a_smaller_grid_are_not_taken_for_those_of_a_wider_one(
    storybook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = tmp_path / "m.yaml"
    matrix.write_text(MATRIX.replace("[baseline, oelm_v2]", "baseline"))
    run([matrix], tmp_path / "results", storybook.parent)
    matrix.write_text(matrix.read_text().replace("[1e-3, 1e-2]", "[1e-3, 1e-2, 3e-2]"))
    with pytest.raises(UserError, match=r"the best of 0\.001, 0\.01, not of 0\.001, 0\.01, 0\.03\); remove it"):
        run([matrix], tmp_path / "results", storybook.parent)


def test_where_nothing_could_be_kept_nothing_is_trained(
    storybook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = tmp_path / "m.yaml"
    matrix.write_text(MATRIX)
    with pytest.raises(UserError, match="must be folders that can be written"):
        run([matrix], matrix, storybook.parent)
    for archive in (tmp_path / "nowhere" / "kept.tar", tmp_path):
        with pytest.raises(UserError, match="must be a file in a folder that is there"):
            run([matrix], tmp_path / "results", storybook.parent, archive=archive)
    assert not list((tmp_path / "results").iterdir())


def test_whoever_stops_a_run_stops_them_all(storybook: Path, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MATRIX.replace("max_steps: 8", "max_steps: 100000"))
    command = [
        sys.executable,
        "-m",
        "experiments.run",
        str(tmp_path / "m.yaml"),
        "--results",
        str(tmp_path / "results"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(experiments.__file__).parents[1])}
    process = subprocess.Popen(
        [*command, "--data-dir", str(storybook.parent)],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not any(map(_has_begun, tmp_path.glob("outputs/study-*/run"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the same command goes on" in said
    assert not list(tmp_path.rglob("manifest.json"))


def _has_begun(path: Path) -> bool:
    metrics = path / "metrics.jsonl"
    return metrics.exists() and metrics.stat().st_size > 0


def test_what_fails_holds_up_nothing_else(
    storybook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(config: RunConfig, command: list[str]) -> RunFolder:
        if config.model_type == "baseline":
            raise MemoryError("no room for a baseline")
        return fit(config, command=command)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("experiments.run.fit", failing)
    (tmp_path / "m.yaml").write_text(MATRIX)
    archive = tmp_path / "kept.tar"
    assert run([tmp_path / "m.yaml"], tmp_path / "results", storybook.parent, minutes=60, archive=archive) == 4
    assert "no room for a baseline" in capsys.readouterr().out
    assert not (tmp_path / "results/m/baseline").exists()
    assert len(find_runs([tmp_path / "results/m/oelm_v2"])) == 2


def test_a_rate_that_diverges_is_kept_as_such_and_not_tried_again(
    storybook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = tmp_path / "m.yaml"
    matrix.write_text(MATRIX.replace("[1e-3, 1e-2]", "[1e-3, 90]").replace("[baseline, oelm_v2]", "baseline"))
    settings = matrix.read_text() + "  grad_clip: 0\n  warmup_steps: 0\n  decay: all\n  weight_decay: 100\n"
    matrix.write_text(settings)
    for _ in range(2):
        run([matrix], tmp_path / "results", storybook.parent, minutes=60, archive=None)
    assert capsys.readouterr().out.count("training has diverged") == 1
    (row,) = compare(find_runs([tmp_path / "results/m/baseline"])).rows
    assert row.results[0].config.max_lr == 1e-3


@pytest.mark.parametrize("matrix", sorted(Path(experiments.__file__).parent.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_matrices_of_the_study_are_sound(matrix: Path, tmp_path: Path) -> None:
    for corpus in ("wiki", "reviews", "tinystories-13k", "storybook"):
        (tmp_path / corpus).mkdir()
        (tmp_path / corpus / "meta.json").touch()
    for arm in read_matrix(matrix, tmp_path / "results", tmp_path):
        assert arm.config.recipe == "fair"
        assert len(arm.rates) > 1 or arm.config.final_split == "val"  # no search looks at the test split
