"""The demo, the README's first command: from nothing to a comparison; and nothing is done twice."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest
from matplotlib.image import imread

from oelm import cli
from oelm.demo import PROMPT, SAMPLED, VARIANTS, _corpus, demo
from oelm.runfolder import find_runs


def test_the_demo_trains_compares_draws_and_samples_and_does_so_once(
    storybook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("oelm.demo.demo", functools.partial(demo, steps=3))
    out = tmp_path / "demo"

    def output() -> str:
        with pytest.raises(SystemExit) as end:
            cli.main(["demo", "--data-dir", str(storybook.parent), "--out-dir", str(out)])
        assert end.value.code == 0
        return capsys.readouterr().out

    said = output()

    for word in ("Baseline", "OELM-Freeze", "OELM-Random", "OELM-v3", "PPL ≤", "one seed only", "ms/step"):
        assert word in said
    for name in VARIANTS:
        assert (out / name / "seed-0" / "manifest.json").exists()
        assert f"{out / name / 'seed-0'}\n" in said
    for name in SAMPLED:
        sample = (out / name / "seed-0" / "samples" / "demo.txt").read_text()
        assert sample.startswith(PROMPT)
        assert sample in said
    picture = imread(out / "validation.png")
    assert picture.shape == (630, 1050, 4)
    assert picture.std() > 0.05  # not a blank sheet
    assert f"{out / 'validation.png'}\n" in said

    assert f"{out / 'report.html'}\n" in said.partition("A report on all of it")[2]
    assert "OELM-Freeze" in (out / "report.html").read_text()
    assert (out / "report.md").exists()

    trained = written(out)
    again = output()
    assert again.count("is finished already: nothing to do") == len(VARIANTS)
    assert comparison(again) == comparison(said)
    assert written(out) == trained
    assert all(len(run.manifest()["sessions"]) == 1 for run in find_runs([out]))


def test_a_storybook_of_other_settings_also_does(storybook: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(storybook, tmp_path / "storybook"))
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "settings": {**meta["settings"], "val_fraction": 0.1}}))
    assert _corpus(tmp_path) == folder


def comparison(said: str) -> str:
    return said.partition("6. The comparison")[2].partition("A report on all of it")[0]


def written(folder: Path) -> dict[Path, int]:
    """When each file of the runs' results, and the report on them, was written."""
    return {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix in (".json", ".safetensors", ".html")
    }
