"""`oelm log`: the run that was meant, the end of what it said, and what it says next."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.folders import make_runs
from oelm.errors import UserError
from oelm.runfolder import RunFolder, write_json
from oelm.runs import log
from oelm.runs.waiting import Notice, Waiting
from tests.conftest import oelm


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(tmp_path)
    return [make_runs(Path("outputs") / name, ("oelm_v2",), 2, 10) for name in ("GPT-03", "GPT-04")][1]


def set_state(path: Path, state: str) -> None:
    status = json.loads((path / "status.json").read_text())
    write_json(path / "status.json", {**status, "state": state, "pid": os.getpid(), "heartbeat": time.time()})


def test_a_path_and_a_name_mean_a_run(runs: list[Path]) -> None:
    for name in (str(runs[1]), "GPT-04/oelm_v2/seed-1", "gpt-04/oelm_v2/seed-1"):
        assert log.find(name, "outputs", may_come=False).path == runs[1]


def test_of_several_runs_the_one_that_runs_is_meant(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"GPT-04 has 2 runs, and none is running; name one of them: .*seed-0 \(finish"):
        log.find("GPT-04", "outputs", may_come=False)
    set_state(runs[1], "running")
    for name in ("GPT-04", "outputs/GPT-04"):
        assert log.find(name, "outputs", may_come=False).path == runs[1]
        assert capsys.readouterr().err == f"{name} has 2 runs, this is {runs[1]}\n"


def test_an_unknown_name_is_offered_the_nearest(runs: list[Path]) -> None:
    with pytest.raises(UserError, match=r"no run of that name in outputs; did you mean GPT-0\d\?"):
        log.find("GPT-05", "outputs", may_come=True)


def test_a_run_that_waits_can_be_named(runs: list[Path]) -> None:
    notice = Notice(Path("outputs"))
    notice.write([Waiting("outputs/GPT-06/baseline/seed-0", "baseline", 0, 10, "later")])
    assert log.find("GPT-06", "outputs", may_come=False).path == Path("outputs/GPT-06/baseline/seed-0")


def test_a_path_that_may_come_is_taken_only_by_who_waits(runs: list[Path]) -> None:
    assert log.find("outputs/later/seed-0", "outputs", may_come=True).path == Path("outputs/later/seed-0")
    with pytest.raises(UserError, match="is no run folder"):
        log.find("outputs/later/seed-0", "outputs", may_come=False)


def test_the_end_of_a_log_and_the_traceback_of_a_run_that_failed(runs: list[Path]) -> None:
    (runs[0] / "training.log").write_text("".join(f"line {i}\n" for i in range(100)))
    (runs[0] / "console.log").write_text(
        "said\nTraceback (most recent call last):\n  old\nTraceback (most recent call last):\n  File\nKeyError: 1\n"
    )
    assert oelm("log", str(runs[0]), "-n", "2").stdout == "line 98\nline 99\n"
    assert len(log.said(RunFolder(runs[0]), 20)) == 20
    set_state(runs[0], "failed")
    said = oelm("log", str(runs[0]), "-n", "1").stdout.splitlines()
    assert said == ["line 99", "", "Traceback (most recent call last):", "  File", "KeyError: 1"]


def test_a_log_that_is_not_there_is_a_line(runs: list[Path]) -> None:
    (runs[0] / "training.log").unlink()
    result = oelm("log", str(runs[0]))
    assert (result.returncode, result.stderr) == (
        2,
        f"oelm: {runs[0]}/training.log is not there yet; -f waits for it\n",
    )


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "TAIL", 100)
    path = tmp_path / "training.log"
    path.write_text("".join(f"line {i}\n" for i in range(1000)))
    assert log.tail(path, 3) == ["line 997", "line 998", "line 999"]
    assert log.tail(path, 1000)[0].startswith("line 9")
    assert log.tail(path, 0) == []


def test_a_follower_hands_on_whole_lines_whatever_becomes_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "training.log"
    follower = log.Follower(path, 2)
    assert follower.news() == ""
    path.write_text("one\ntwo\nthree\nhal")
    assert follower.news() == "one\ntwo\nthree\n"  # it came after we did: all of it is news
    with path.open("a") as file:
        file.write("f ü\n")
    assert follower.news() == "half ü\n"
    path.write_text("anew\n")
    assert follower.news() == "anew\n"
    assert log.Follower(path, 0).news() == ""
    path.write_text("one\ntwo\nthree\nhal")
    assert log.Follower(path, 2).news() == "two\nthree\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_following_begins_before_the_run_and_ends_when_told(number: signal.Signals, code: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "oelm", "log", "outputs/x/seed-0", "-f"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stderr.readline() == "waiting for outputs/x/seed-0/training.log\n"
    folder = tmp_path / "outputs" / "x" / "seed-0"
    folder.mkdir(parents=True)
    RunFolder(folder).log("begins")
    assert process.stdout.readline().endswith(" begins\n")
    process.send_signal(number)
    assert process.wait(timeout=10) == code
    assert process.stderr.read() == ("" if code == 0 else "oelm: terminated\n")
