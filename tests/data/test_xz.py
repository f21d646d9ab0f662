"""Compressed text of several streams: all of it, or a word that it is damaged."""

import lzma
from pathlib import Path

import pytest

from oelm.data import corpora
from oelm.data.xz import open_xz
from oelm.errors import UserError

FIRST, SECOND = (lzma.compress(f"{word} ".encode() * 50_000) for word in ("one", "two"))
TEXT = "one " * 50_000 + "two " * 50_000


def read(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return "".join(corpora.Reading([path]))


@pytest.mark.parametrize("content", [FIRST + SECOND, FIRST + b"\0" * 8 + SECOND + b"\0" * 200_000])
def test_streams_are_read_one_after_the_other(tmp_path: Path, content: bytes) -> None:
    assert read(tmp_path / "a.txt.xz", content) == TEXT


def test_the_old_format_under_the_new_name_is_read(tmp_path: Path) -> None:
    assert read(tmp_path / "a.txt.xz", lzma.compress(b"old", lzma.FORMAT_ALONE)) == "old"


@pytest.mark.parametrize(
    "content",
    [
        FIRST + b"\xff" + SECOND[1:],
        FIRST + SECOND[:100] + b"\xff" * 8 + SECOND[108:],
        FIRST + SECOND[: len(SECOND) // 2],
        FIRST + SECOND[:3],
        FIRST + b"garbage",
        b"",
    ],
)
def test_text_is_not_lost_silently(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(UserError, match=r"a\.txt\.xz is damaged or cut short"):
        read(tmp_path / "a.txt.xz", content)


def test_it_is_closed_with_its_reader(tmp_path: Path) -> None:
    (tmp_path / "a.xz").write_bytes(FIRST)
    with (tmp_path / "a.xz").open("rb") as file:
        with open_xz(file) as stream:
            assert stream.read(4) == b"one "
        assert file.closed
