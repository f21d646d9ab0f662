"""The list of experiments: the study's seven as they were, and what has come of them here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.folders import make_runs
from oelm.runs import listing
from oelm.runs.matrix import EXPERIMENTS, TUNING
from oelm.runs.overview import overviews
from oelm.runs.waiting import Notice, Waiting
from tests.conftest import oelm


def test_the_seven_are_listed_before_anything_was_run(tmp_path: Path) -> None:
    rows = listing.rows(tmp_path / "outputs")
    assert [row[0] for row in rows] == list(EXPERIMENTS)
    assert {row[5] for row in rows} == {"none yet"}
    assert rows[0] == ("GPT-01", "tinystories", "baseline", "0.0003", "100,000", "none yet", "", "", "4.27")
    assert rows[6][-1] == "never run"


def test_what_was_run_is_listed_with_its_state_and_results(tmp_path: Path) -> None:
    make_runs(tmp_path / "GPT-01", ["baseline"], 2, 10)
    frozen = make_runs(tmp_path / "GPT-02", ["oelm_v2"], 3, 10)
    make_runs(tmp_path / "mine", ["baseline", "oelm_v2"], 1, 10)
    make_runs(tmp_path / "mine" / TUNING, ["baseline"], 1, 10)
    status = json.loads((frozen[2] / "status.json").read_text())
    (frozen[2] / "status.json").write_text(json.dumps({**status, "state": "failed"}))
    (frozen[1] / "manifest.json").write_text('{"format": 99}')
    rows = {row[0]: row for row in listing.rows(tmp_path)}
    assert rows["GPT-01"][5:8][0] == "2 finished"
    assert float(rows["GPT-01"][6]) > 1
    assert rows["GPT-02"][5] == "1 failed, 1 unreadable, 1 finished"
    assert rows["GPT-02"][7].endswith(" %")
    assert rows["mine"][1:8] == ("storybook", "2 variants", "0.001", "100", "2 finished", "", "")
    assert rows["GPT-01"][1:5] == ("storybook", "baseline", "0.001", "100")
    assert rows["GPT-01"][-1] == "other task"


def test_the_command_prints_the_list(tmp_path: Path) -> None:
    result = oelm("list", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "GPT-07" in result.stdout


def test_what_waits_is_listed_from_wherever_one_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notice = Notice(tmp_path / "outputs")
    notice.write([Waiting(str(tmp_path / "outputs/mine/oelm_v2/seed-0"), "oelm_v2", 0, 100, "a free slot")])
    monkeypatch.chdir(tmp_path)
    for outputs in (tmp_path / "outputs", Path("outputs")):
        assert listing.rows(outputs)[-1][:6] == ("mine", "", "oelm_v2", "", "100", "1 waiting")
    monkeypatch.chdir("/")
    (run,) = overviews(tmp_path / "outputs")
    assert (run.state, run.path) == ("waiting", str(tmp_path / "outputs/mine/oelm_v2/seed-0"))
    notice.remove()


def test_a_run_folder_itself_may_be_listed(tmp_path: Path) -> None:
    (path,) = make_runs(tmp_path, ["baseline"], 1, 10)
    assert listing.rows(path)[-1][0] == "seed-0"
