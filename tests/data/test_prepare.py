"""Preparation: right splits, right bytes, nothing half done."""

import fcntl
import gzip
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.data.meta import Meta
from oelm.data.prepare import prepare, split_of
from oelm.data.tokenizer import Gpt2Bpe, open_tokenizer
from oelm.errors import UserError


def write_corpus(folder: Path, documents: list[str]) -> Path:
    path = folder / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def split_tokens(folder: Path, split: str) -> list[int]:
    meta = json.loads((folder / "meta.json").read_text())
    tokens: list[int] = np.fromfile(folder / f"{split}.bin", dtype=meta["dtype"]).tolist()
    return tokens


def test_the_bins_hold_the_documents_in_order_each_ended(tmp_path: Path) -> None:
    documents = [f"Document number {i} about {i * i} things." for i in range(400)]
    folder = prepare("mine", [write_corpus(tmp_path, documents)], data_dir=tmp_path, val_fraction=0.1)
    tokenizer = Gpt2Bpe()
    for split in ("train", "val", "test"):
        text = tokenizer.decode(split_tokens(folder, split))
        expected = [d for d in documents if split_of(d, 0.1, 0.02) == split]
        assert text.split("<|endoftext|>") == [*expected, ""]


def test_a_small_vocabulary_is_learnt_from_the_text_and_kept_with_it(tmp_path: Path) -> None:
    source = write_corpus(tmp_path, [f"The story of number {i}, and of <|endoftext|> in it." for i in range(3000)])
    folder = prepare("mine", [source], data_dir=tmp_path, vocab_size=400)
    meta, tokenizer = Meta.read(folder), open_tokenizer("small-bpe", folder)
    assert (meta.tokenizer, meta.vocab_size, sum(meta.documents.values())) == ("small-bpe", 400, 3000)
    tokens = split_tokens(folder, "val")
    assert tokens.count(tokenizer.end_of_text) == meta.documents["val"]
    assert tokenizer.decode(tokens).startswith("The story of number ")
    assert prepare("mine", [source], data_dir=tmp_path, vocab_size=400) == folder
    with pytest.raises(UserError, match="prepared with other settings"):
        prepare("mine", [source], data_dir=tmp_path)


def test_a_setting_that_an_older_version_did_not_have_makes_no_other_corpus(tmp_path: Path) -> None:
    source = write_corpus(tmp_path, [f"text {i}" for i in range(300)])
    folder = prepare("mine", [source], data_dir=tmp_path)
    meta = json.loads((folder / "meta.json").read_text())
    del meta["settings"]["vocab_size"]
    (folder / "meta.json").write_text(json.dumps(meta))
    assert prepare("mine", [source], data_dir=tmp_path) == folder


def test_meta_says_what_the_files_are(tmp_path: Path) -> None:
    source = write_corpus(tmp_path, [f"text {i}" for i in range(300)])
    folder = prepare("mine", [source], data_dir=tmp_path)
    meta = json.loads((folder / "meta.json").read_text())
    assert sum(meta["documents"].values()) == 300
    assert (meta["dtype"], meta["tokenizer"], meta["vocab_size"]) == ("uint16", "gpt2", 50257)
    content = source.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert meta["source"] == [{"file": str(source), "bytes": len(content), "sha256": digest}]
    for split in ("train", "val", "test"):
        content = (folder / f"{split}.bin").read_bytes()
        assert meta["sha256"][split] == hashlib.sha256(content).hexdigest()
        assert meta["tokens"][split] == len(content) // 2


@given(st.text(min_size=1), st.floats(0.05, 0.4), st.floats(0, 0.4))
def test_a_document_and_its_duplicates_fall_on_one_side(text: str, val: float, test: float) -> None:
    assert split_of(text, val, test) == split_of(f"  {text}\n", val, test) == split_of(text, val, test)


def test_splits_have_about_the_size_asked_for() -> None:
    places = [split_of(f"document {i}", 0.2, 0.1) for i in range(20_000)]
    assert places.count("val") / 20_000 == pytest.approx(0.2, abs=0.01)
    assert places.count("test") / 20_000 == pytest.approx(0.1, abs=0.01)


def test_max_tokens_is_never_exceeded_and_nearly_reached(tmp_path: Path) -> None:
    source = write_corpus(tmp_path, [f"This is the text with number {i}." for i in range(5000)])
    seen: list[tuple[int, int]] = []
    folder = prepare(
        "mine",
        [source],
        data_dir=tmp_path,
        max_tokens=5000,
        on_progress=lambda tally: seen.append((tally.documents, tally.tokens)),
    )
    meta = Meta.read(folder)
    assert 4980 <= sum(meta.tokens.values()) <= 5000
    assert seen[-1] == (sum(meta.documents.values()), sum(meta.tokens.values()))
    with pytest.raises(UserError, match=r"--max-tokens 3 is fewer than the \d+ tokens of the first document"):
        prepare("less", [source], data_dir=tmp_path, max_tokens=3)


@pytest.mark.parametrize("limit", [None, 5000])
def test_it_says_how_far_it_is(tmp_path: Path, limit: int | None) -> None:
    """In the files, though they are compressed; or on the way to --max-tokens, where that is nearer."""
    text = "".join(json.dumps({"text": f"Text {i * 7919} of {i}."}) + "\n" for i in range(200_000))
    with gzip.open(tmp_path / "text.jsonl.gz", "wt") as file:
        file.write(text)
    seen: list[float] = []
    sources = [write_corpus(tmp_path, ["one"] * 40), tmp_path / "text.jsonl.gz"]
    prepare("mine", sources, data_dir=tmp_path, max_tokens=limit, on_progress=lambda t: seen.append(t.share or 0))
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0, abs=0.01)
    assert limit or any(0.2 < share < 0.8 for share in seen)


def test_asking_again_does_nothing_and_asking_otherwise_is_refused(tmp_path: Path) -> None:
    source = write_corpus(tmp_path, [f"text {i}" for i in range(300)])
    folder = prepare("mine", [source], data_dir=tmp_path)
    before = (folder / "train.bin").stat().st_mtime_ns
    assert prepare("mine", [source], data_dir=tmp_path) == folder
    assert (folder / "train.bin").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="prepared with other settings"):
        prepare("mine", [source], data_dir=tmp_path, val_fraction=0.3)
    source.write_bytes(source.read_bytes().replace(b"text 7", b"TEXT 7"))  # no longer, no shorter
    with pytest.raises(UserError, match="prepared from other text; pass --overwrite"):
        prepare("mine", [source], data_dir=tmp_path)
    prepare("mine", [source], data_dir=tmp_path, overwrite=True)


def test_the_same_text_elsewhere_is_the_same_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_corpus(tmp_path, [f"text {i}" for i in range(300)])
    folder = prepare("mine", [source], data_dir=tmp_path)
    before = (folder / "train.bin").stat().st_mtime_ns
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    copy = Path(shutil.copyfile(source, tmp_path / "elsewhere" / source.name))
    source.touch()
    for same in (source, source.name, copy):
        prepare("mine", [same], data_dir=tmp_path)
    assert (folder / "train.bin").stat().st_mtime_ns == before
    other_kind = Path(shutil.copyfile(source, tmp_path / "text.txt"))
    with pytest.raises(UserError, match="prepared from other text"):
        prepare("mine", [other_kind], data_dir=tmp_path)


DIES_WHILE_REPLACING = """
import os, pathlib, signal, sys
rename = pathlib.Path.rename
def rename_and_die(self, target):
    rename(self, target)
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.rename = rename_and_die
from oelm.data.prepare import prepare
prepare("mine", [sys.argv[1]], data_dir=sys.argv[2], val_fraction=0.3, overwrite=True)
"""


def test_killed_while_it_replaces_a_corpus_it_loses_neither(tmp_path: Path) -> None:
    source, data = write_corpus(tmp_path, [f"text {i}" for i in range(300)]), tmp_path / "data"
    folder = prepare("mine", [source], data_dir=data)
    before = (folder / "train.bin").stat().st_mtime_ns
    died = subprocess.run([sys.executable, "-c", DIES_WHILE_REPLACING, str(source), str(data)])
    assert died.returncode == -signal.SIGKILL
    assert not folder.exists()
    with pytest.raises(UserError, match="prepared with other settings; pass --overwrite"):
        prepare("mine", [source], data_dir=data, val_fraction=0.3)
    assert (folder / "train.bin").stat().st_mtime_ns == before
    prepare("mine", [source], data_dir=data, val_fraction=0.3, overwrite=True)
    assert [path.name for path in data.iterdir()] == ["mine"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_nothing_that_looks_finished(tmp_path: Path, number: signal.Signals) -> None:
    """The source is a pipe that never ends, so the process is surely in the middle of its work."""
    pipe = tmp_path / "endless.txt"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-m", "oelm", "prepare", "mine", "--source", str(pipe), "--data-dir", str(tmp_path / "data")],
        stderr=subprocess.PIPE,
        text=True,
    )
    with pipe.open("w") as writer:
        writer.write("a document\n<|endoftext|>\n" * 60_000)
        writer.flush()
        while not list((tmp_path / "data").glob(".mine.unfinished-*/train.bin")):
            time.sleep(0.05)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)  # the pipe stays open, so that only the signal can end it
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
    said = {signal.SIGKILL: "", signal.SIGINT: "oelm: interrupted\n", signal.SIGTERM: "oelm: terminated\n"}
    assert errors == said[number]
    left = sorted(path.name.partition("-")[0] for path in (tmp_path / "data").iterdir())
    assert left == ([".mine.lock", ".mine.unfinished"] if number == signal.SIGKILL else [])
    source = write_corpus(tmp_path, [f"text {i}" for i in range(300)])
    prepare("mine", [source], data_dir=tmp_path / "data")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "tinystory"}, "did you mean tinystories"),
        ({"name": "mine"}, "There are: storybook, .*; for your own text: --source PATH$"),
        ({"name": "storybook", "max_tokens": True}, "--max-tokens True must be a whole number"),
        ({"name": "a/b", "source": ["x.txt"]}, "must be a plain folder name"),
        ({"name": "storybook", "val_fraction": 0.6, "test_fraction": 0.4}, "must leave something to train on"),
        ({"name": "storybook", "max_tokens": 0}, "--max-tokens 0 must be a whole number, at least 1"),
        ({"name": "storybook", "max_tokens": "9"}, "--max-tokens '9' must be a whole number"),
        ({"name": "storybook", "vocab_size": 256}, "--vocab-size 256 must be a whole number, from 257 to 65,536"),
        ({"name": "storybook", "vocab_size": 2**17}, "--vocab-size 131072 must be a whole number, from 257 to 65,536"),
        ({"name": "storybook", "val_fraction": "0.1"}, "--val-fraction '0.1' must be a number"),
        ({"name": "storybook", "test_fraction": []}, r"--test-fraction \[\] must be a number"),
        ({"name": "storybook", "val_fraction": math.nan}, "--val-fraction nan must lie between 0 and 1"),
        ({"name": "storybook", "source": ["x.txt"]}, "storybook is a corpus of its own; choose another name"),
    ],
)
def test_what_cannot_be_prepared_is_refused(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        prepare(**arguments, data_dir=tmp_path)  # type: ignore[arg-type]


def test_only_a_prepared_corpus_is_ever_replaced(tmp_path: Path) -> None:
    source = write_corpus(tmp_path, [f"text {i}" for i in range(300)])
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="is no prepared corpus; move it away"):
        prepare("precious", [source], data_dir=tmp_path, overwrite=True)
    folder = prepare("mine", [source], data_dir=tmp_path)
    inside = write_corpus(folder, [f"text {i}" for i in range(300)])
    with pytest.raises(UserError, match="lie in each other"):
        prepare("mine", [inside], data_dir=tmp_path, overwrite=True)
    with pytest.raises(
        UserError, match=r"mine/text\.jsonl is no part of the corpus that --overwrite replaces; move it"
    ):
        prepare("mine", [source], data_dir=tmp_path, overwrite=True)
    assert (precious / "thesis.txt").read_text() == "years of work"
    assert inside.exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2] + b"\x01\x00")


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("train.bin", Path.unlink),
        ("train.bin", cut),
        ("val.bin", change),
        ("test.bin", Path.unlink),
        ("meta.json", cut),
    ],
)
def test_a_damaged_corpus_is_not_called_done_and_overwrite_mends_it(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    source = write_corpus(tmp_path, [f"text {i}" for i in range(300)])
    folder = prepare("mine", [source], data_dir=tmp_path)
    whole = (folder / name).read_bytes()
    damage(folder / name)
    with pytest.raises(UserError, match=rf"{name} .*again with --overwrite"):
        prepare("mine", [source], data_dir=tmp_path)
    prepare("mine", [source], data_dir=tmp_path, overwrite=True)
    assert (folder / name).read_bytes() == whole
    prepare("mine", [source], data_dir=tmp_path)


def test_a_corpus_without_its_tokenizer_is_not_called_done(storybook: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(storybook, tmp_path / "storybook"))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read .*again with --overwrite"):
        prepare("storybook", data_dir=tmp_path)
    prepare("storybook", data_dir=tmp_path, overwrite=True)
    assert (folder / "tokenizer.json").read_bytes() == (storybook / "tokenizer.json").read_bytes()


def test_what_killed_processes_left_is_cleared_away_even_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    """And nothing else: who is at work is known by a lock, not by a number, which another container has as well."""
    source, data = write_corpus(tmp_path, [f"text {i}" for i in range(300)]), tmp_path / "data"
    prepare("mine", [source], data_dir=data, test_fraction=0)
    for name in (".mine.unfinished-dead", ".mine.replaced-dead", ".mine.unfinished-alive"):
        (data / name).mkdir()
    for name in (".mine.lock-dead", ".mine.lock-alive"):
        (data / name).touch()
    with (data / ".mine.lock-alive").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prepare("mine", [source], data_dir=data, test_fraction=0)
        assert {path.name for path in data.iterdir()} == {"mine", ".mine.unfinished-alive", ".mine.lock-alive"}


def test_too_few_documents_for_the_splits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="fell into val: give more documents, or raise --val-fraction"):
        prepare("mine", [write_corpus(tmp_path, ["the same"] * 30)], data_dir=tmp_path)
    with pytest.raises(UserError, match="fell into train: give more documents, or lower --val-fraction"):
        prepare("mine", [write_corpus(tmp_path, ["the same"] * 30)], data_dir=tmp_path, val_fraction=0.97)
    for fraction in (0.02, 0.97):
        with pytest.raises(UserError, match=r"too few documents \(1\) .*: give more documents; .*<\|endoftext\|>"):
            prepare("mine", [write_corpus(tmp_path, ["just one"])], data_dir=tmp_path, val_fraction=fraction)
    with pytest.raises(UserError, match="has no text in it"):
        prepare("mine", [write_corpus(tmp_path, [" "])], data_dir=tmp_path)
    assert not (tmp_path / "mine").exists()


def test_a_pipe_is_never_taken_for_the_text_of_before(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)

    def prepared(word: str) -> Path:
        text = "<|endoftext|>\n".join(f"{word} {i}\n" for i in range(300))
        writer = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
        writer.start()
        return prepare("mine", [pipe], data_dir=tmp_path / "data")

    prepared("one")
    with pytest.raises(UserError, match="prepared from a pipe, whose text cannot be compared; pass --overwrite"):
        prepared("another")


def test_numbers_may_be_numpys(tmp_path: Path) -> None:
    source = write_corpus(tmp_path, [f"text {i}" for i in range(300)])
    numbers: dict[str, Any] = {"max_tokens": np.int64(500), "val_fraction": np.float32(0.125)}
    folder = prepare("mine", [source], data_dir=tmp_path, **numbers)
    assert Meta.read(folder).settings["max_tokens"] == 500
    assert Meta.read(folder).settings["val_fraction"] == 0.125
