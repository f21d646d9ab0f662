"""meta.json: read whole or refused with its name; and what a missing corpus may have been meant to be."""

import json
from pathlib import Path
from typing import Any

import pytest

from oelm.data.meta import Meta
from oelm.errors import UserError

PER_SPLIT = {"train": 5, "val": 3, "test": 1}
GOOD = Meta(
    name="mine",
    dtype="uint16",
    tokenizer="gpt2",
    vocab_size=50257,
    end_of_text=50256,
    documents=PER_SPLIT,
    tokens=PER_SPLIT,
    sha256=dict.fromkeys(PER_SPLIT, "0" * 64),
    source=[{"file": "a.txt"}],
    settings={},
)


def corpus(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "train.bin").touch()
    GOOD.write(folder)
    return folder


def test_it_reads_what_it_wrote(tmp_path: Path) -> None:
    assert Meta.read(corpus(tmp_path / "mine")) == GOOD


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"n": ' + b"9" * 5000])
def test_what_is_no_json_object_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "meta.json").write_bytes(content)
    with pytest.raises(UserError, match=r"meta\.json is damaged .*; prepare the corpus again with --overwrite"):
        Meta.read(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 2),
        ("name", None),
        ("dtype", "object"),
        ("dtype", ["uint16"]),
        ("tokenizer", "gpt5"),
        ("vocab_size", "x"),
        ("vocab_size", 0),
        ("end_of_text", True),
        ("documents", {"train": 1.5, "val": 1, "test": 1}),
        ("tokens", {}),
        ("tokens", {**PER_SPLIT, "val": -1}),
        ("sha256", {}),
        ("sha256", {**GOOD.sha256, "val": "abc"}),
        ("source", ["a.txt"]),
        ("settings", []),
    ],
)
def test_wrong_content_is_named(tmp_path: Path, field: str, value: Any) -> None:
    path = corpus(tmp_path / "mine") / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(UserError, match=rf"meta\.json: {field} must be .*; prepare the corpus again with --overwrite"):
        Meta.read(path.parent)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("data/storybook", r"holds no prepared corpus; run: oelm prepare storybook$"),
        ("data/storybok", r"did you mean storybook\? For text of your own, run: oelm prepare storybok --source FILES$"),
        ("data/my-novel", r"did you mean my-novels\? "),
        (
            "nowhere/xyz",
            r"nowhere/xyz holds no prepared corpus; run: oelm prepare xyz --source FILES --data-dir nowhere$",
        ),
        ("data/my-novels/meta.json", r"meta\.json is a file; give its folder, data/my-novels$"),
    ],
)
def test_a_missing_corpus_is_told_what_may_have_been_meant(
    folder: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus(Path("data/my-novels"))
    with pytest.raises(UserError, match=message):
        Meta.read(Path(folder))
