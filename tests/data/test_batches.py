"""Batches: a pure function of seed and step; corpora that are what they say they are."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.data import batches
from oelm.data.batches import Ahead, Batches, open_corpus, validation_windows
from oelm.errors import UserError


def make(seed: int = 0, batch_size: int = 8, count: int = 1000, seq_len: int = 10) -> Batches:
    return Batches(np.arange(count, dtype=np.uint16), seq_len, batch_size, seed)


@given(st.integers(0, 2**40), st.integers(0, 500))
def test_a_batch_depends_on_seed_and_step_alone(seed: int, step: int) -> None:
    fresh = make(seed).batch(step)
    used = make(seed)
    for other in (step + 3, 0, step + 100):
        used.batch(other)
    np.testing.assert_array_equal(used.batch(step)[0], fresh[0])


@given(st.integers(0, 100), st.sampled_from([(1, 1), (1, 4), (2, 2), (4, 1), (8, 1), (2, 4)]))
def test_ranks_and_micro_steps_share_the_batch_out(step: int, cut: tuple[int, int]) -> None:
    world, accumulation = cut
    whole = make().batch(step)[0]
    parts = [make().share(step, rank, world, accumulation) for rank in range(world)]
    pieces = [parts[rank][micro][0] for micro in range(accumulation) for rank in range(world)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_an_epoch_visits_every_window_once_and_the_next_in_another_order() -> None:
    data = make(batch_size=9)  # 99 windows: 11 steps an epoch
    epochs = [np.concatenate([data.batch(step)[0][:, 0] for step in range(11 * e, 11 * (e + 1))]) for e in range(3)]
    for starts in epochs:
        assert sorted(starts.tolist()) == list(range(0, 990, 10))
    assert epochs[0].tolist() != epochs[1].tolist() != epochs[2].tolist()


def test_targets_are_the_next_tokens() -> None:
    inputs, targets, _ = make().batch(5)
    np.testing.assert_array_equal(targets, inputs + 1)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_gathering_ahead_changes_nothing(workers: int) -> None:
    data = make()
    ahead = Ahead(data, rank=0, world=2, accumulation=2, workers=workers)
    for step in (3, 4, 5, 6, 20, 21, 4, 5):
        for part, expected in zip(ahead.take(step), data.share(step, 0, 2, 2), strict=True):
            for ours, theirs in zip(part, expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_sequences_are_numbered_over_the_whole_run() -> None:
    data = make(batch_size=8)
    assert data.batch(0).rows.tolist() == list(range(8))
    rows = [row for rank in range(2) for micro in data.share(3, rank, 2, 2) for row in micro.rows.tolist()]
    assert sorted(rows) == list(range(24, 32))


@given(st.integers(2, 500), st.integers(1, 60), st.one_of(st.none(), st.integers(1, 600)))
def test_validation_scores_every_token_once(count: int, seq_len: int, limit: int | None) -> None:
    windows = validation_windows(np.arange(count), seq_len, limit)
    scored = [target for start, length in windows for target in range(start + 1, start + length + 1)]
    assert scored == list(range(1, min(limit or count, count - 1) + 1))


@pytest.fixture
def corpus(storybook: Path, tmp_path: Path) -> Path:
    """A copy of the storybook that nobody has verified yet."""
    return Path(shutil.copytree(storybook, tmp_path / "storybook", ignore=shutil.ignore_patterns(batches.HASH_CACHE)))


def test_a_good_corpus_opens(corpus: Path) -> None:
    opened = open_corpus(corpus, 0, 64)
    assert opened.vocab_size == 1024
    assert len(opened.split("train")) == opened.meta.tokens["train"]


def test_a_corpus_is_hashed_once_and_again_only_when_it_changed(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[str] = []
    scan = batches._scan

    def counting_scan(path: Path, dtype: str) -> tuple[str, int]:
        scanned.append(path.name)
        return scan(path, dtype)

    monkeypatch.setattr(batches, "_scan", counting_scan)
    open_corpus(corpus, 0, 64)
    open_corpus(corpus, 0, 64)
    assert scanned == ["train.bin", "val.bin"]
    (corpus / "val.bin").touch()
    open_corpus(corpus, 0, 64)
    assert scanned == ["train.bin", "val.bin", "val.bin"]


NONSENSE = [b"[]", b"{", b"\xff", b"[" * 100_000, b'{"train": 1, "val": {"mark": 0}}']


@pytest.mark.parametrize("content", NONSENSE)
def test_a_cache_of_nonsense_is_ignored(corpus: Path, content: bytes) -> None:
    (corpus / batches.HASH_CACHE).write_bytes(content)
    open_corpus(corpus, 0, 64)
    assert json.loads((corpus / batches.HASH_CACHE).read_text())["val"]["greatest"] < 1024


def damage(folder: Path, how: str) -> None:
    train = folder / "train.bin"
    content = train.read_bytes()
    match how:
        case "missing":
            train.unlink()
        case "empty" | "truncated":
            train.write_bytes(content[: 0 if how == "empty" else 100])
        case "changed":
            train.write_bytes(content[:-2] + b"\x01\x00")
        case "no meta":
            (folder / "meta.json").unlink()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", r"train\.bin is missing; prepare the corpus again"),
        ("empty", r"train\.bin has 0 bytes instead of"),
        ("truncated", r"train\.bin has 100 bytes instead of"),
        ("changed", r"train\.bin is not the file that meta\.json describes"),
        ("no meta", r"holds no prepared corpus; run: oelm prepare storybook"),
    ],
)
def test_a_corpus_that_is_not_whole_is_refused(corpus: Path, how: str, message: str) -> None:
    damage(corpus, how)
    with pytest.raises(UserError, match=message):
        open_corpus(corpus, 0, 64)


def test_a_token_beyond_the_vocabulary_is_refused(corpus: Path) -> None:
    remedy = "leave --vocab_size out, or make it at least the tokenizer's 1024"
    with pytest.raises(UserError, match=rf"holds the token 10\d\d, beyond a vocabulary of 1000; {remedy}"):
        open_corpus(corpus, 1000, 64)


def test_a_corpus_shorter_than_a_sequence_is_refused(corpus: Path) -> None:
    with pytest.raises(UserError, match=r"fewer than one sequence of --seq_len 100000"):
        open_corpus(corpus, 0, 100_000)


def test_a_corpus_without_its_tokenizer_is_refused_before_it_is_trained_on(storybook: Path, tmp_path: Path) -> None:
    corpus = Path(shutil.copytree(storybook, tmp_path / "storybook"))
    (corpus / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json is missing; prepare the corpus again with --overwrite"):
        open_corpus(corpus, 0, 64)
