"""A prepared corpus, checked, and batch(step): a pure function of seed and step.

Training visits the windows of train.bin (non-overlapping, seq_len long) in shuffled epochs. Nothing here keeps a
position: whoever asks for step 1,000 gets the same sequences, whether or not anyone asked for step 999, so neither
evaluation nor resuming nor the number of ranks or micro-steps changes what is trained on.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from oelm.data.meta import Meta
from oelm.data.tokenizer import TOKENIZER_FILE, SmallBpe
from oelm.errors import UserError

Tokens = npt.NDArray[np.int64]
HASH_CACHE = ".verified.json"


@dataclass(frozen=True)
class Corpus:
    """A prepared folder: memory-mapped splits and what meta.json says of them."""

    folder: Path
    meta: Meta

    @property
    def vocab_size(self) -> int:
        return self.meta.vocab_size

    @property
    def hashes(self) -> dict[str, str]:
        return self.meta.sha256

    def split(self, name: str) -> npt.NDArray[Any]:
        return np.memmap(self.folder / f"{name}.bin", dtype=self.meta.dtype, mode="r")


def open_corpus(folder: Path, vocab_size: int, seq_len: int, splits: Iterable[str] = ("train", "val")) -> Corpus:
    """The corpus in a folder, after checking that a model of this vocabulary can be trained on these splits of it."""
    corpus = Corpus(folder, Meta.read(folder))
    tokenizer = folder / TOKENIZER_FILE
    if corpus.meta.tokenizer == SmallBpe.name and not tokenizer.exists():
        raise UserError(f"{tokenizer} is missing; prepare the corpus again with --overwrite")
    greatest = {split: verify(corpus, split) for split in splits}
    for split, token in greatest.items():
        limit = vocab_size or corpus.vocab_size
        if token >= limit:
            remedy = f"leave --vocab_size out, or make it at least the tokenizer's {corpus.vocab_size}"
            if limit >= corpus.vocab_size:
                remedy = "its tokenizer makes no such token: prepare the corpus again with --overwrite"
            raise UserError(f"{folder / split}.bin holds the token {token}, beyond a vocabulary of {limit}; {remedy}")
        if corpus.meta.tokens[split] < seq_len + 1:
            raise UserError(
                f"{folder / split}.bin has {corpus.meta.tokens[split]} tokens, fewer than one sequence of "
                f"--seq_len {seq_len} and its target; prepare more text or train on shorter sequences"
            )
    return corpus


def verify(corpus: Corpus, split: str) -> int:
    """Checks a .bin against the hash in meta.json and returns its greatest token.

    The result is cached by the file's size and time, so that 18 GB are not read again at every start.
    """
    path = corpus.folder / f"{split}.bin"
    again = "; prepare the corpus again with --overwrite"
    try:
        stat = path.stat()
    except FileNotFoundError:
        raise UserError(f"{path} is missing{again}") from None
    expected = corpus.meta.tokens[split] * np.dtype(corpus.meta.dtype).itemsize
    if stat.st_size != expected:
        raise UserError(f"{path} has {stat.st_size} bytes instead of {expected}{again}")
    mark = [stat.st_size, stat.st_mtime_ns, corpus.hashes[split]]
    cache = _read_cache(corpus.folder)
    match cache.get(split):
        case {"mark": seen, "greatest": int(greatest)} if seen == mark:
            return greatest
    digest, greatest = _scan(path, corpus.meta.dtype)
    if digest != corpus.hashes[split]:
        raise UserError(f"{path} is not the file that meta.json describes (its sha256 differs){again}")
    _write_cache(corpus.folder, {**cache, split: {"mark": mark, "greatest": greatest}})
    return greatest


def _scan(path: Path, dtype: str) -> tuple[str, int]:
    digest, greatest = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
            greatest = max(greatest, int(np.frombuffer(block, dtype=dtype).max()))
    return digest.hexdigest(), greatest


def _read_cache(folder: Path) -> dict[str, Any]:
    try:
        cache = json.loads((folder / HASH_CACHE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return cache if isinstance(cache, dict) else {}


def _write_cache(folder: Path, cache: dict[str, Any]) -> None:
    with suppress(OSError):  # a read-only corpus is verified each time
        (folder / HASH_CACHE).write_text(json.dumps(cache), encoding="utf-8")


class MicroBatch(NamedTuple):
    """Sequences that are computed together."""

    inputs: Tokens  # (rows, seq_len)
    targets: Tokens  # the inputs' successors
    rows: Tokens  # the number of each sequence in the run


@dataclass(frozen=True)
class Batches:
    """The training data as a function of the step."""

    tokens: npt.NDArray[Any]
    seq_len: int
    batch_size: int
    seed: int

    @property
    def windows(self) -> int:
        """Sequences per epoch; each window's last token is the target of its last input."""
        return (len(self.tokens) - 1) // self.seq_len

    def rows(self, step: int) -> Tokens:
        """The numbers of a step's sequences; a run counts them from its start, over all epochs."""
        return np.arange(step * self.batch_size, (step + 1) * self.batch_size)

    def starts(self, rows: Tokens) -> Tokens:
        """Where in the tokens each sequence begins."""
        epochs, places = np.divmod(rows, self.windows)
        starts = np.empty_like(rows)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            starts[here] = _order(self.windows, self.seed, int(epoch))[places[here]]
        return starts * self.seq_len

    def sequences(self, rows: Tokens) -> MicroBatch:
        """The sequences of these numbers."""
        places = self.starts(rows)[:, None] + np.arange(self.seq_len + 1)
        tokens = self.tokens[places].astype(np.int64)
        return MicroBatch(tokens[:, :-1], tokens[:, 1:], rows)

    def batch(self, step: int) -> MicroBatch:
        """The whole batch of a step, the same for everyone who asks."""
        return self.sequences(self.rows(step))

    def share(self, step: int, rank: int, world: int, accumulation: int) -> list[MicroBatch]:
        """This rank's micro-batches: the step's batch cut into world × accumulation equal parts."""
        parts = self.rows(step).reshape(accumulation, world, -1)[:, rank]
        return [self.sequences(rows) for rows in parts]


@functools.lru_cache(maxsize=4)
def _order(windows: int, seed: int, epoch: int) -> npt.NDArray[np.uint32]:
    """The order in which an epoch visits its windows."""
    return np.random.default_rng([seed, epoch]).permutation(np.arange(windows, dtype=np.uint32))


class Ahead:
    """This rank's micro-batches of any step, the following steps' gathered meanwhile by `workers` threads."""

    def __init__(self, batches: Batches, rank: int, world: int, accumulation: int, workers: int) -> None:
        self._share = functools.partial(batches.share, rank=rank, world=world, accumulation=accumulation)
        self._depth = 2 * workers
        self._pool = ThreadPoolExecutor(workers) if workers else None
        self._pending: dict[int, Future[list[MicroBatch]]] = {}

    def take(self, step: int) -> list[MicroBatch]:
        if self._pool is None:
            return self._share(step)
        wanted = range(step, step + self._depth + 1)
        kept = {number: future for number, future in self._pending.items() if number in wanted}
        self._pending = {number: kept.get(number) or self._pool.submit(self._share, number) for number in wanted}
        return self._pending[step].result()


def validation_windows(tokens: npt.NDArray[Any], seq_len: int, limit: int | None) -> list[tuple[int, int]]:
    """(start, length) of the windows that are scored: back to back from the start, until `limit` tokens or the end.

    The last window may be shorter, so that a whole set is scored to its last token.
    """
    total = len(tokens) - 1 if limit is None else min(limit, len(tokens) - 1)
    return [(start, min(seq_len, total - start)) for start in range(0, total, seq_len)]
