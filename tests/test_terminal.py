"""The display: on a real (pseudo-)terminal names stand as they are, and a run outlives whoever watches it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from oelm import terminal
from oelm.analysis.compare import Comparison, Row
from oelm.analysis.results import read_result
from oelm.analysis.stats import Estimate
from oelm.config import RunConfig
from oelm.data.prepare import prepare
from oelm.runfolder import RunFolder
from oelm.training.loop import fit
from oelm.training.observe import Progress
from tests.conftest import flags_of

Tiny = Callable[..., RunConfig]

LIKE_MARKUP = "a [/x] [bold] :smile: b"


class Screen:
    """A terminal with somebody at it, who reads what is printed until they leave."""

    def __init__(self, leave_after: bytes = b"never") -> None:
        self._leave_after, self._seen = leave_after, b""
        self._master, slave = pty.openpty()
        self._file = os.fdopen(slave, "w")
        self._reader = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        with suppress(OSError):  # how a terminal says that its other side is closed
            while self._leave_after not in self._seen:
                self._seen += os.read(self._master, 4096)
        os.close(self._master)

    def __enter__(self) -> Screen:
        self._reader.start()
        self._stdout, sys.stdout = sys.stdout, self._file
        return self

    def __exit__(self, *error: object) -> None:
        sys.stdout = self._stdout
        self._file.close()
        self._reader.join(timeout=10)

    @property
    def text(self) -> str:
        """All that was shown, without colours and movements of the cursor."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._seen.decode())


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "400")


def test_a_run_is_shown_live_with_its_folder_s_name_as_it_is(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny(out_dir=str(tmp_path / LIKE_MARKUP), log_interval=1)
    with Screen() as screen:
        fit(config, terminal.observer())
        fit(config, terminal.observer())
    assert re.search(rf"run folder +{re.escape(str(config.run_folder))} *\r\n", screen.text)
    assert "step 20/20" in screen.text
    assert "val PPL" in screen.text
    assert f"{config.run_folder} is finished already" in screen.text


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_number_of_the_progress_is_cut_on_a_narrow_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    with Screen() as screen:
        observer = terminal.observer()
        observer.progress(Progress(123_450, 150_000, 3.1234, 4.5678, 4.5555, 51_234.0, 12_345.0))
        observer.close()
    for part in (
        "step 123,450/150,000",
        "loss 3.1234",
        "val PPL 96.33 (best 95.15)",
        "51,234 tokens/s",
        "3h 25m 45s left",
    ):
        assert part in screen.text
    assert "…" not in screen.text


def test_a_corpus_is_shown_under_its_name_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "some.txt").write_text("<|endoftext|>\n".join(f"Story {i} is short.\n" for i in range(200)))
    with Screen() as screen, terminal.preparing(LIKE_MARKUP) as on_progress:
        prepare("mine", [tmp_path / "some.txt"], data_dir=tmp_path / "data", on_progress=on_progress)
    assert f"{LIKE_MARKUP}: " in screen.text


def test_samples_stand_side_by_side_under_their_names_as_they_are() -> None:
    with Screen() as screen:
        terminal.side_by_side([f"1 {LIKE_MARKUP}", f"2 {LIKE_MARKUP}"], ["One [day]", "Once"])
    header, body = screen.text.strip().splitlines()
    assert re.search(rf"1 {re.escape(LIKE_MARKUP)} +2 {re.escape(LIKE_MARKUP)}", header)
    assert body.split() == ["One", "[day]", "Once"]


def test_the_notes_of_a_comparison_stand_as_they_are() -> None:
    with Screen() as screen:
        terminal.show(Comparison(rows=(), warnings=(LIKE_MARKUP,), criterion=1.05, task=LIKE_MARKUP))
    assert screen.text.startswith(LIKE_MARKUP)
    assert f"note: {LIKE_MARKUP}\r\n" in screen.text


@pytest.mark.parametrize("columns", [200, 80, 40])
def test_a_comparison_is_never_cut_short(columns: int, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    result = read_result(fit(tiny(max_steps=2, warmup_steps=1)))
    row = Row(
        "OELM-Freeze", (result,), Estimate(2.571), Estimate(0.012), "one seed only", "Baseline", 0.0646, 1.0, 3e9, 61.0
    )
    comparison = Comparison((row,), (), 1.05, "a task")
    with Screen() as screen:
        terminal.show(comparison)
    shown = screen.text.split()
    for headings, (cells,) in (comparison.quality, comparison.cost):
        for text in (*headings, *cells):
            assert set(text.split()) <= set(shown)


def test_a_run_outlives_the_pipe_that_shows_it(tiny: Tiny) -> None:
    """As in `oelm train … | head -1`."""
    config = tiny(log_interval=1)
    train = subprocess.Popen(
        [sys.executable, "-m", "oelm", "train", *flags_of(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""},
    )
    assert train.stdout is not None
    assert train.stderr is not None
    assert train.stdout.readline().startswith("variant ")
    train.stdout.close()
    assert train.stderr.read() == ""
    assert train.wait(timeout=60) == 0
    assert RunFolder(config.run_folder).status()["state"] == "finished"


def test_a_run_outlives_the_terminal_that_shows_it(tiny: Tiny) -> None:
    """As when a connection is lost, and the run was told to ignore the hang-up."""
    with Screen(leave_after=b"run folder") as screen:
        folder = fit(tiny(log_interval=1), terminal.observer())
    assert folder.status()["state"] == "finished"
    assert "finished: val loss" not in screen.text
    assert "finished: val loss" in (folder.path / "training.log").read_text()


def test_progress_of_a_run_that_diverges_is_shown_in_few_digits() -> None:
    line = Progress(1, 2, 1000.0, val_loss=1000.0, best_loss=3.0, tokens_per_second=1.0, seconds_left=1.0).line()
    assert "val PPL 1.014e+304 (best 20.09)" in line
