"""A corpus takes its place whole, and takes nobody else's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from oelm.data import prepare as preparation
from oelm.data.meta import Meta
from oelm.data.prepare import Tally, prepare
from oelm.errors import UserError
from tests.conftest import oelm
from tests.data.test_prepare import write_corpus


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_corpus(tmp_path, [f"text {i}" for i in range(300)])


def overtaken(*arguments: str) -> Callable[[Tally], None]:
    """Lets another process prepare the same corpus while this one is at it."""

    def on_progress(tally: Tally) -> None:
        result = oelm("prepare", *arguments)
        assert result.returncode == 0, result.stderr

    return on_progress


def test_of_two_who_prepare_a_corpus_at_once_the_first_to_end_is_kept(tmp_path: Path, source: Path) -> None:
    data = tmp_path / "data"
    other = overtaken("mine", "--source", str(source), "--data-dir", str(data), "--val-fraction", "0.3")
    with pytest.raises(UserError, match="was prepared with other settings; pass --overwrite"):
        prepare("mine", [source], data_dir=data, on_progress=other)
    assert Meta.read(data / "mine").settings["val_fraction"] == 0.3
    assert [path.name for path in data.iterdir()] == ["mine"]
    same = overtaken("mine2", "--source", str(source), "--data-dir", str(data))
    assert prepare("mine2", [source], data_dir=data, on_progress=same) == data / "mine2"


@pytest.mark.parametrize("overwrite", [False, True])
def test_where_the_last_step_fails_nothing_is_left_and_nothing_lost(
    tmp_path: Path, source: Path, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    if overwrite:
        prepare("mine", [source], data_dir=data)
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if ".unfinished-" in path.name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError):
        prepare("mine", [source], data_dir=data, val_fraction=0.3, overwrite=overwrite)
    assert [path.name for path in data.iterdir()] == (["mine"] if overwrite else [])
    if overwrite:
        assert Meta.read(data / "mine").settings["val_fraction"] == 0.02


def test_a_link_stays_a_link_to_what_is_replaced(tmp_path: Path, source: Path) -> None:
    prepare("mine", [source], data_dir=tmp_path / "elsewhere")
    data = tmp_path / "data"
    data.mkdir()
    (data / "mine").symlink_to(tmp_path / "elsewhere" / "mine")
    prepare("mine", [source], data_dir=data, val_fraction=0.3, overwrite=True)
    assert (data / "mine").is_symlink()
    assert Meta.read(tmp_path / "elsewhere" / "mine").settings["val_fraction"] == 0.3
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["mine"]


@pytest.mark.parametrize("goal", ["nowhere", "mine"])
def test_a_link_to_nothing_is_named_before_anything_is_read(tmp_path: Path, source: Path, goal: str) -> None:
    (tmp_path / "mine").symlink_to(tmp_path / goal)
    os.truncate(source, 0)  # which would be refused, too, if it were read
    with pytest.raises(UserError, match=rf"{tmp_path}/mine is a link to .*{goal}, where nothing is; remove it"):
        prepare("mine", [source], data_dir=tmp_path)


def test_a_data_folder_that_is_a_file_is_named(tmp_path: Path, source: Path) -> None:
    for place in (source, source / "deeper"):
        with pytest.raises(UserError, match=rf"--data-dir {place}: {source} is a file, not a folder"):
            prepare("mine", [source], data_dir=place)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_by_the_folder_on_it(
    number: int, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(preparation._Writer, "write", full)
    with pytest.raises(UserError, match=rf"no space left on the disk while preparing {tmp_path}/data/mine; free some"):
        prepare("mine", [source], data_dir=tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []
