"""Text → tokens → train.bin, val.bin, test.bin and meta.json.

Documents are tokenised by threads (both tokenizers leave Python while they work) and written in their order, each
followed by the end-of-text token. Which split a document belongs to follows from a hash of its content alone, so
duplicates stay on one side. The folder appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from oelm.data import corpora, storybook
from oelm.data.batches import HASH_CACHE, Corpus, verify
from oelm.data.meta import META_FILE, SPLITS, Meta, is_corpus
from oelm.data.request import STORYBOOK_STORIES, Request, asked_for, difference
from oelm.data.scratch import TakenError, becoming, tidy
from oelm.data.tokenizer import END_OF_TEXT, TOKENIZER_FILE, Gpt2Bpe, SmallBpe, TokenArray, Tokenizer
from oelm.errors import UserError

# Characters that are encoded, or wait for it or for their turn to be written, however many cores there are: at worst,
# encoding takes 160 bytes of memory for each.
IN_FLIGHT = 2_000_000
TOO_FEW = 20  # documents; no choice of fractions makes good splits of fewer
CORPUS_FILES = {META_FILE, TOKENIZER_FILE, HASH_CACHE, *(f"{split}.bin" for split in SPLITS)}
THREADS = os.cpu_count() or 1
SAMPLE_DOCUMENTS, SAMPLE_CHARACTERS = 2_000, 2_000_000  # at most, and about, of which a small vocabulary is learnt


@dataclass
class Tally:
    """How far it is; handed to the caller's display after every chunk."""

    documents: int = 0
    tokens: int = 0
    share: float | None = None  # of the whole; None where nobody can tell
    started: float = field(default_factory=time.perf_counter)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(time.perf_counter() - self.started, 1e-9)


def prepare(
    name: str,
    source: Iterable[str | Path] = (),
    *,
    data_dir: str | Path = "data",
    val_fraction: float | None = None,
    test_fraction: float | None = None,
    max_tokens: int | None = None,
    vocab_size: int | None = None,
    text_field: str = "text",
    overwrite: bool = False,
    on_progress: Callable[[Tally], None] = lambda tally: None,
) -> Path:
    """Prepares a corpus and returns its folder; a folder that is already what was asked for is left as it is."""
    sources = tuple(map(str, source))
    request = asked_for(name, sources, val_fraction, test_fraction, max_tokens, vocab_size, text_field)
    folder = Path(data_dir) / name
    target = _followed(folder)
    tidy(target)
    if folder.is_symlink() and not folder.exists():
        raise UserError(f"{folder} is a link to {target}, where nothing is; remove it or choose another name")
    if folder.exists():
        _refuse_to_replace(folder, request)
        if not overwrite:
            return _existing(folder, request)
        _refuse_to_lose(folder)
    origin = request.describe()  # before it is read: text that changes meanwhile is noticed when asked again
    try:
        with becoming(target, replace=overwrite) as scratch:
            text = _open_text(request)
            documents, tokenizer = _with_tokenizer(text, request)
            with _Writer(scratch, tokenizer) as writer:
                for tally in _write_all(writer, documents, request):
                    tally.share = _share(tally, text, request)
                    on_progress(tally)
            if isinstance(tokenizer, SmallBpe):
                tokenizer.save(scratch)
            _check_complete(writer, request)
            Meta(name=name, **writer.summary(), **origin).write(scratch)
    except TakenError:  # by another process, which was done first
        _refuse_to_replace(folder, request)
        return _existing(folder, request)
    return folder


def _followed(folder: Path) -> Path:
    """The folder itself, or the one that it is a link to: the link is to stay."""
    try:
        return folder.resolve() if folder.is_symlink() else folder
    except (OSError, RuntimeError):  # a link to itself
        return folder


def _refuse_to_replace(folder: Path, request: Request) -> None:
    """Nothing but a prepared corpus is ever replaced, and never one that a source lies in."""
    if not is_corpus(folder):
        raise UserError(f"{folder} exists and is no prepared corpus; move it away or choose another name")
    for source in map(Path, request.source):
        if source.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(source.resolve()):
            raise UserError(f"--source {source} and {folder} lie in each other; move the source or choose another name")


def _refuse_to_lose(folder: Path) -> None:
    """What others have put into a corpus's folder would vanish with it."""
    foreign = sorted({path.name for path in folder.iterdir()} - CORPUS_FILES)
    if foreign:
        raise UserError(f"{folder / foreign[0]} is no part of the corpus that --overwrite replaces; move it away first")


def _existing(folder: Path, request: Request) -> Path:
    meta = Meta.read(folder)
    if otherwise := difference(meta, request):
        raise UserError(f"{folder} was prepared {otherwise}; pass --overwrite to replace it, or choose another name")
    _check_whole(folder, meta)
    return folder


def _check_whole(folder: Path, meta: Meta) -> None:
    for split in SPLITS:
        verify(Corpus(folder, meta), split)
    if meta.tokenizer == SmallBpe.name:
        SmallBpe.load(folder)


def _with_tokenizer(text: Iterator[str], request: Request) -> tuple[Iterator[str], Tokenizer]:
    documents = corpora.in_pieces(text)
    if request.small_vocabulary is None:
        return documents, Gpt2Bpe()
    sample = list(_sample(documents))
    lessons = (document[:SAMPLE_CHARACTERS] for document in sample)
    return itertools.chain(sample, documents), SmallBpe.train(lessons, request.small_vocabulary)


def _open_text(request: Request) -> Iterator[str]:
    if request.source:
        return corpora.Reading(corpora.find_files(map(Path, request.source)), request.text_field)
    if request.name == "storybook":
        return storybook.stories(STORYBOOK_STORIES)
    return corpora.HUB[request.name].documents()


def _share(tally: Tally, text: Iterator[str], request: Request) -> float | None:
    """How far a preparation is: in the files, or on the way to --max-tokens."""
    shares = [
        text.share if isinstance(text, corpora.Reading) else None,
        tally.tokens / request.max_tokens if request.max_tokens else None,
    ]
    return max((share for share in shares if share is not None), default=None)


def _sample(documents: Iterator[str]) -> Iterator[str]:
    """The first documents, taken from the iterator."""
    characters = 0
    for document in itertools.islice(documents, SAMPLE_DOCUMENTS):
        yield document
        characters += len(document)
        if characters >= SAMPLE_CHARACTERS:
            return


def split_of(document: str, val_fraction: float, test_fraction: float) -> str:
    """train, val or test, by a hash of the document's content."""
    digest = hashlib.blake2b(document.strip().encode("utf-8", "surrogatepass"), digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64
    if place < test_fraction:
        return "test"
    return "val" if place < test_fraction + val_fraction else "train"


Encoded = list[tuple[str, TokenArray]]


def _write_all(writer: _Writer, documents: Iterator[str], request: Request) -> Iterator[Tally]:
    """Writes the documents, and says after every chunk how far it is."""
    tally = Tally()

    def encode(chunk: list[str]) -> Encoded:
        return [
            (split_of(text, request.val_fraction, request.test_fraction), writer.tokenizer.encode(text))
            for text in chunk
        ]

    for chunk in _in_order(encode, _chunks(documents)):
        too_long = _write_chunk(writer, chunk, tally, request.max_tokens)
        yield tally
        if too_long and not tally.documents:
            raise UserError(
                f"--max-tokens {request.max_tokens} is fewer than the {too_long} tokens of the first document; raise it"
            )
        if too_long:
            return


def _write_chunk(writer: _Writer, chunk: Encoded, tally: Tally, max_tokens: int | None) -> int:
    """Writes the documents before the one that would exceed max_tokens, and returns that one's length, or 0."""
    for split, tokens in chunk:
        length = len(tokens) + 1
        if max_tokens is not None and tally.tokens + length > max_tokens:
            return length
        writer.write(split, tokens)
        tally.documents += 1
        tally.tokens += length
    return 0


def _chunks(documents: Iterator[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for document in documents:
        if not document.strip():
            continue
        chunk.append(document)
        size += len(document)
        if size >= IN_FLIGHT // (4 * THREADS):
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _in_order(encode: Callable[[list[str]], Encoded], chunks: Iterator[list[str]]) -> Iterator[Encoded]:
    """Encodes on all cores, a bounded number of characters ahead, and hands the results out in order."""
    pending: deque[tuple[int, Future[Encoded]]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for chunk in chunks:
                size = sum(map(len, chunk))
                while pending and size + sum(waiting for waiting, _ in pending) > IN_FLIGHT:
                    yield pending.popleft()[1].result()
                pending.append((size, pool.submit(encode, chunk)))
            while pending:
                yield pending.popleft()[1].result()
        finally:
            pool.shutdown(cancel_futures=True)


class _Writer:
    """The three .bin files, their hashes and counts."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.dtype = np.dtype("uint16" if tokenizer.vocab_size <= 2**16 else "uint32")
        self._files = {split: (folder / f"{split}.bin").open("wb") for split in SPLITS}
        self._hashes = {split: hashlib.sha256() for split in SPLITS}
        self.tokens = dict.fromkeys(SPLITS, 0)
        self.documents = dict.fromkeys(SPLITS, 0)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._files.values():
            file.close()

    def write(self, split: str, tokens: TokenArray) -> None:
        end = np.array([self.tokenizer.end_of_text], self.dtype)
        content = np.concatenate([tokens, end], dtype=self.dtype, casting="unsafe").tobytes()
        self._files[split].write(content)
        self._hashes[split].update(content)
        self.tokens[split] += len(tokens) + 1
        self.documents[split] += 1

    def summary(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype.name,
            "tokenizer": self.tokenizer.name,
            "vocab_size": self.tokenizer.vocab_size,
            "end_of_text": self.tokenizer.end_of_text,
            "documents": self.documents,
            "tokens": self.tokens,
            "sha256": {split: digest.hexdigest() for split, digest in self._hashes.items()},
        }


def _check_complete(writer: _Writer, request: Request) -> None:
    total = sum(writer.documents.values())
    if not total:
        raise UserError(f"corpus {request.name} has no text in it; check what --source names")
    more = "give more documents" + ("" if request.max_tokens is None else ", raise --max-tokens")
    needed = ("train", "val", "test") if request.test_fraction else ("train", "val")
    empty = next((split for split in needed if not writer.documents[split]), None)
    if empty and total < TOO_FEW:
        raise UserError(
            f"corpus {request.name} has too few documents ({total}) for {', '.join(needed)}: {more}; in a .txt file, "
            f"a line with {END_OF_TEXT} separates two"
        )
    if empty:
        raise UserError(
            f"none of the {total} documents of {request.name} fell into {empty}: "
            f"{more}, or {'lower --val' if empty == 'train' else f'raise --{empty}'}-fraction"
        )
