"""The points of docs/performance.md can be measured, whichever peers there are."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import performance
from benchmarks.performance import is_measured, points
from oelm.bench.bench import public
from oelm.bench.options import Bench


@pytest.mark.parametrize("peers", [Bench(), Bench(nanogpt="there"), Bench(nanogpt="there", huggingface=True)])
def test_peers_are_measured_alone_where_there_are_any(peers: Bench) -> None:
    alone = points(peers)["alone"]
    assert len(alone) == 2 * (bool(peers.nanogpt) + peers.huggingface)
    assert all(not point.variants and bool(point.nanogpt) != point.huggingface for point in alone.values())


def test_the_command_says_what_it_measures() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "benchmarks.performance", "--help"]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "freezing,main,alone" in result.stdout.replace(" ", "")


def test_a_point_is_measured_again_only_when_it_is_asked_for_otherwise(tmp_path: Path) -> None:
    path, point = tmp_path / "8x512.json", Bench(nanogpt="/here/nanoGPT", data_path="/here/wiki", out="there.json")
    assert not is_measured(path, point)
    path.write_text(json.dumps({"options": public(point)}))
    assert is_measured(path, point)
    assert is_measured(path, replace(point, nanogpt="elsewhere", data_path="/other", out=None))
    assert not is_measured(path, replace(point, nanogpt=None))
    assert not is_measured(path, replace(point, variants=("baseline",)))


def test_what_cannot_be_measured_stops_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performance, "FOLDER", tmp_path)
    monkeypatch.setattr(performance, "PROGRAM", "# {}\nraise SystemExit('such a reason')")
    monkeypatch.setattr(sys, "argv", ["performance", "wiki", "--no-huggingface", "--parts", "freezing", "engines"])
    with pytest.raises(SystemExit, match="for the reasons above: freezing 8x512, freezing 64x512, engines 8x512, eng"):
        performance.main()
