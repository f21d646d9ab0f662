"""Attempts: who holds a run, and how its tries ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.folders import make_runs
from oelm.runfolder import RunFolder, read_json, write_json
from oelm.runs import attempts
from oelm.runs.overview import overviews


def test_one_process_holds_a_run_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert not attempts.is_claimed(folder)
    held = attempts.claim(folder)
    assert held is not None
    assert attempts.is_claimed(folder)
    assert attempts.claim(folder) is None
    os.close(held)
    assert not attempts.is_claimed(folder)


@pytest.mark.parametrize(
    ("said", "code", "cause"),
    [
        ("Traceback\noelm: the disk is full\n", 2, "the disk is full"),
        ("step 5\nRuntimeError: it burns\n\n", 1, "RuntimeError: it burns"),
        ("", 1, "exit code 1, without a word"),
        ("oelm: anything", -9, "killed by SIGKILL from outside, perhaps for want of memory"),
        ("x" * 50_000 + "\noelm: the end of much\n", 1, "the end of much"),
    ],
)
def test_the_cause_is_one_line(tmp_path: Path, said: str, code: int, cause: str) -> None:
    (tmp_path / attempts.CONSOLE).write_text(said)
    assert attempts.cause(RunFolder(tmp_path), code) == cause


def test_what_a_queue_saw_of_a_death_is_told_with_the_dead(tmp_path: Path) -> None:
    (path,) = make_runs(tmp_path, ["baseline"], 1, 10)
    status = read_json(path / "status.json", {"state": str})
    write_json(path / "status.json", {**status, "state": "running", "heartbeat": 0.0})
    assert [(run.state, run.message) for run in overviews(tmp_path)] == [("dead", "")]
    attempts.began(RunFolder(path), "GPU 0")
    attempts.ended(RunFolder(path), -9, "killed by SIGKILL from outside")
    assert [(run.state, run.message) for run in overviews(tmp_path)] == [("dead", "killed by SIGKILL from outside")]
