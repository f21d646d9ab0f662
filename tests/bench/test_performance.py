"""The points of docs/performance.md can be measured, whichever peers there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.performance import points
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
    assert "main,alone,freezing" in result.stdout.replace(" ", "")
