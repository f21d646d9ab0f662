"""The run folder's files: whole or not at all; a torn last line ignored; foreign ones named."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm import runfolder
from oelm.analysis.compare import compare
from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.runfolder import (
    Heart,
    RunFolder,
    append_line,
    cut_lines,
    last_line,
    locked,
    read_lines,
    write_json,
    write_whole,
)
from oelm.sampling import Sampling, sample
from oelm.training.audit import findings
from oelm.training.loop import fit
from tests.conftest import needs


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


@pytest.mark.parametrize("size", [10, 2**14, 2**17])
def test_the_last_line_may_be_of_any_length(tmp_path: Path, size: int) -> None:
    for before in range(2):
        path = tmp_path / f"{before}.jsonl"
        for step in range(2 - before, 3):
            append_line(path, {"step": step, "heads": "x" * size})
        with path.open("a") as file:
            file.write('{"step": 3, "torn')
        assert (last_line(path) or {})["step"] == 2


def test_a_torn_last_line_may_hold_anything(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\xff\x00')
    assert read_lines(path) == [{"step": 1}]


def test_what_killed_processes_left_half_written_is_cleared_away_by_the_next(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.checkpoints.mkdir(parents=True)
    program = "import os, pathlib, sys; from oelm import runfolder; os.fsync = lambda _: os.kill(os.getpid(), 9); "
    for path in (folder.path / "status.json", folder.checkpoints / "best.safetensors"):
        write = f"runfolder.write_whole(pathlib.Path({str(path)!r}), 'half')"
        assert subprocess.run([sys.executable, "-c", program + write]).returncode == -9
    mine = folder.path / f".config.yaml.{os.getpid()}"  # of a process that lives
    mine.touch()
    assert len(list(folder.path.rglob(".*.*"))) == 3
    with locked(folder):
        assert list(folder.path.rglob(".*.*")) == [mine]


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
        ('{"format": 99}', "has format 99; this version reads 2"),
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


def edited(folder: RunFolder, old: str, new: str) -> None:
    path = folder.path / "config.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


READERS: dict[str, Callable[[RunFolder], object]] = {
    "compare": lambda folder: compare([folder]),
    "audit": findings,
    "sample": lambda folder: sample(folder, Sampling(tokens=1)),
}


def test_what_is_not_of_one_run_is_not_believed(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    fields = {"max_steps": 2, "warmup_steps": 1}
    folder, other = fit(tiny(**fields)), fit(tiny(**fields, seed=5, out_dir=str(tmp_path / "other")))
    changes: dict[str, Callable[[], object]] = {
        "model_type is oelm_v2 in the one, baseline in the other": lambda: edited(folder, "baseline", "oelm_v2"),
        "seed is 1 in the one, 0 in the other": lambda: edited(folder, "seed: 0", "seed: 1"),
        "max_lr is 0.03 in the one, 0.003 in the other": lambda: edited(folder, "max_lr: 0.003", "max_lr: 0.03"),
        "the run_id is not that of the config": lambda: edited(folder, "beta2: 0.95", "beta2: 0.9"),
        "seed is 0 in the one, 5 in the other": lambda: shutil.copy(other.path / "manifest.json", folder.path),
    }
    files = {folder.path / name: (folder.path / name).read_bytes() for name in ("config.yaml", "manifest.json")}
    for message, change in changes.items():
        change()
        for read in READERS.values():
            with pytest.raises(UserError, match=rf"{folder.path}: config\.yaml and manifest\.json .*\({message}"):
                read(folder)
        for path, content in files.items():
            path.write_bytes(content)
    for read in READERS.values():
        read(folder)


ENDS_ON_A_FULL_DISK = """
import contextlib, pathlib
from oelm.runfolder import Heart, RunFolder
folder = RunFolder(pathlib.Path("."))
heart = Heart(folder, 10, "cpu")
with contextlib.suppress(OSError), open("filling", "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
heart.end("failed", "no space left on the disk")
print(folder.status()["state"])
"""


def test_a_status_ends_on_a_disk_that_is_really_full(tmp_path: Path) -> None:
    needs("tmpfs")
    program = f"mount -t tmpfs -o size=200k tmpfs {tmp_path} && cd {tmp_path} && exec {sys.executable} -c '{{}}'"
    result = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", program.format(ENDS_ON_A_FULL_DISK)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == "failed\n", result.stderr


def test_a_full_disk_does_not_keep_a_status_from_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heart = Heart(RunFolder(tmp_path), 10, "cpu")
    path, long = tmp_path / "status.json", "no space left on the disk; " * 20

    def full(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runfolder, "write_whole", full)
    for message in (long, "short"):
        heart.end("failed", message)
        assert RunFolder(tmp_path).status()["state"] == "failed"
        assert json.loads(path.read_text())["message"] == message
