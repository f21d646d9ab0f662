"""The run folder's files: whole or not at all; a torn last line ignored; foreign ones named."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.runfolder import RunFolder, append_line, cut_lines, read_lines, write_json, write_whole
from oelm.training.loop import fit


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@given(cut=st.integers(1, 30))
def test_a_torn_last_line_is_ignored_and_cut(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "metrics.jsonl"
    for step in (1, 2, 3):
        append_line(path, {"step": step, "loss": 1.5})
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    whole = content[:-cut].count(b"\n")
    assert [record["step"] for record in read_lines(path)] == [1, 2, 3][:whole]
    cut_lines(path, 99)
    append_line(path, {"step": 9})
    assert [record["step"] for record in read_lines(path)] == [*[1, 2, 3][:whole], 9]


def test_a_torn_last_line_may_hold_anything(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\xff\x00')
    assert read_lines(path) == [{"step": 1}]


def test_records_after_a_step_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step in (5, 10, 15):
        append_line(path, {"step": step})
    cut_lines(path, 10)
    assert [record["step"] for record in read_lines(path)] == [5, 10]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged"),
        ('{"format": 99}', "has format 99; this version reads 1"),
        ('{"format": true}', "is damaged"),
    ],
)
def test_a_foreign_manifest_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=message):
        RunFolder(tmp_path).manifest()


def test_a_run_whose_status_was_damaged_goes_on_without_it(tiny: Callable[..., RunConfig]) -> None:
    folder = fit(tiny())
    (folder.path / "status.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"status\.json is damaged: state is missing; remove it, and oelm train goes on"
    ):
        fit(tiny())
    (folder.path / "status.json").unlink()
    assert folder.status()["state"] == "dead"
    fit(tiny())
    assert folder.status()["state"] == "finished"


def test_a_process_number_that_cannot_be_is_dead(tmp_path: Path) -> None:
    status = {"state": "running", "heartbeat": time.time(), "host": socket.gethostname(), "pid": 2**62}
    write_json(tmp_path / "status.json", status)
    assert RunFolder(tmp_path).status()["state"] == "dead"
