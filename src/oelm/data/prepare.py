"""Text → tokens → train.bin, val.bin, test.bin and meta.json.

Documents are tokenised by threads (both tokenizers leave Python while they work) and written in their order, each
followed by the end-of-text token. Which split a document belongs to follows from a hash of its content alone, so
duplicates stay on one side. The folder appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from oelm.data import corpora, storybook
from oelm.data.tokenizer import Gpt2Bpe, SmallBpe, TokenArray, Tokenizer
from oelm.errors import UserError, known

SPLITS = ("train", "val", "test")
META_FORMAT = 1
CHUNK_CHARACTERS = 500_000
STORYBOOK_STORIES = 12_000
STORYBOOK_VOCAB = 1024


@dataclass(frozen=True)
class Preparation:
    """What `oelm prepare` was asked for; kept in meta.json, so that asking again does nothing twice."""

    name: str
    source: tuple[str, ...] = ()
    val_fraction: float = 0.02
    test_fraction: float = 0.02
    max_tokens: int | None = None
    text_field: str = "text"

    def describe(self) -> dict[str, Any]:
        """The request and the text behind it, as meta.json keeps them."""
        source: Any = {"built_in": self.name, "stories": STORYBOOK_STORIES}
        if self.source:
            files = corpora.find_files(map(Path, self.source))
            source = [{"file": str(path), "bytes": path.stat().st_size} for path in files]
        elif self.name in corpora.HUB:
            hub = corpora.HUB[self.name]
            source = {"hub": hub.path, "name": hub.name, "revision": hub.revision, "split": "train"}
        settings = {key: value for key, value in asdict(self).items() if key not in ("name", "source")}
        return {"source": source, "settings": settings}


@dataclass
class Progress:
    """How far it is; handed to the caller's display after every chunk."""

    documents: int = 0
    tokens: int = 0
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
    text_field: str = "text",
    overwrite: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Path:
    """Prepares a corpus and returns its folder; a folder that is already what was asked for is left as it is."""
    request = _request(name, tuple(map(str, source)), val_fraction, test_fraction, max_tokens, text_field)
    folder = Path(data_dir) / name
    if folder.exists():
        _refuse_to_replace(folder, request)
        if not overwrite:
            return _existing(folder, request)
    with _Scratch(folder) as scratch:
        documents, tokenizer = _open_corpus(request)
        with _Writer(scratch, tokenizer) as writer:
            _write_all(writer, documents, request, on_progress)
        if isinstance(tokenizer, SmallBpe):
            tokenizer.save(scratch)
        _check_complete(writer, request)
        meta = {"format": META_FORMAT, "name": name, **writer.summary(), **request.describe()}
        (scratch / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    return folder


def _request(
    name: str,
    source: tuple[str, ...],
    val_fraction: float | None,
    test_fraction: float | None,
    max_tokens: int | None,
    text_field: str,
) -> Preparation:
    if not source:
        known("corpus", name, ["storybook", *corpora.HUB])
    if not name or "/" in name or name.startswith("."):
        raise UserError(f"corpus name {name!r} must be a plain folder name")
    defaults = corpora.HUB.get(name, Preparation(name)) if not source else Preparation(name)
    val = defaults.val_fraction if val_fraction is None else val_fraction
    test = defaults.test_fraction if test_fraction is None else test_fraction
    if not (0 < val < 1 and 0 <= test < 1 and val + test < 1):
        raise UserError(f"--val-fraction {val:g} and --test-fraction {test:g} must leave something to train on")
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"--max-tokens {max_tokens} must be at least 1")
    return Preparation(name, source, val, test, max_tokens, text_field)


def _refuse_to_replace(folder: Path, request: Preparation) -> None:
    """Nothing but a prepared corpus is ever replaced, and never one that a source lies in."""
    if not (folder / "meta.json").exists() or not (folder / "train.bin").exists():
        raise UserError(f"{folder} exists and is no prepared corpus; move it away or choose another name")
    for source in map(Path, request.source):
        if source.resolve().is_relative_to(folder.resolve()) or folder.resolve().is_relative_to(source.resolve()):
            raise UserError(f"--source {source} and {folder} lie in each other; move the source or choose another name")


def _existing(folder: Path, request: Preparation) -> Path:
    try:
        meta = json.loads((folder / "meta.json").read_text())
        made_from = {key: meta[key] for key in ("source", "settings")}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder / 'meta.json'} cannot be read; pass --overwrite to prepare it again") from None
    if made_from != request.describe():
        raise UserError(
            f"{folder} was prepared with other settings; pass --overwrite to replace it, or choose another name"
        )
    return folder


def _open_corpus(request: Preparation) -> tuple[Iterator[str], Tokenizer]:
    if request.source:
        files = corpora.find_files(map(Path, request.source))
        return corpora.read_files(files, request.text_field), Gpt2Bpe()
    if request.name == "storybook":
        small = SmallBpe.train(storybook.stories(STORYBOOK_STORIES // 6), STORYBOOK_VOCAB)
        return storybook.stories(STORYBOOK_STORIES), small
    return corpora.HUB[request.name].documents(), Gpt2Bpe()


def split_of(document: str, val_fraction: float, test_fraction: float) -> str:
    """train, val or test, by a hash of the document's content."""
    digest = hashlib.blake2b(document.strip().encode("utf-8", "surrogatepass"), digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64
    if place < test_fraction:
        return "test"
    return "val" if place < test_fraction + val_fraction else "train"


Encoded = list[tuple[str, TokenArray]]


def _write_all(
    writer: _Writer,
    documents: Iterator[str],
    request: Preparation,
    on_progress: Callable[[Progress], None],
) -> None:
    progress = Progress()

    def encode(chunk: list[str]) -> Encoded:
        return [
            (split_of(text, request.val_fraction, request.test_fraction), writer.tokenizer.encode(text))
            for text in chunk
        ]

    for chunk in _in_order(encode, _chunks(documents)):
        for split, tokens in chunk:
            if request.max_tokens is not None and progress.tokens + len(tokens) + 1 > request.max_tokens:
                return
            writer.write(split, tokens)
            progress.tokens += len(tokens) + 1
        progress.documents += len(chunk)
        on_progress(progress)


def _chunks(documents: Iterator[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    size = 0
    for document in documents:
        if not document.strip():
            continue
        chunk.append(document)
        size += len(document)
        if size >= CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _in_order(encode: Callable[[list[str]], Encoded], chunks: Iterator[list[str]]) -> Iterator[Encoded]:
    """Encodes on all cores, a bounded number of chunks ahead, and hands the results out in order."""
    threads = os.cpu_count() or 1
    pending: deque[Future[Encoded]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for chunk in itertools.islice(chunks, 2 * threads):
                pending.append(pool.submit(encode, chunk))
            while pending:
                yield pending.popleft().result()
                for chunk in itertools.islice(chunks, 1):
                    pending.append(pool.submit(encode, chunk))
        finally:
            pool.shutdown(cancel_futures=True)


class _Scratch:
    """A hidden folder that becomes `target` when its block ends well, and vanishes when it does not."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._scratch = target.parent / f".{target.name}.unfinished-{os.getpid()}"

    def __enter__(self) -> Path:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        for left_over in self._target.parent.glob(f".{self._target.name}.unfinished-*"):
            owner = int(left_over.name.rpartition("-")[2])
            if owner == os.getpid() or not _alive(owner):
                shutil.rmtree(left_over)
        self._scratch.mkdir()
        return self._scratch

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            replaced = self._scratch.with_name(self._scratch.name.replace("unfinished", "replaced"))
            if self._target.exists():
                self._target.rename(replaced)
            self._scratch.rename(self._target)
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


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
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def write(self, split: str, tokens: TokenArray) -> None:
        content = np.append(tokens, self.tokenizer.end_of_text).astype(self.dtype).tobytes()
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


def _check_complete(writer: _Writer, request: Preparation) -> None:
    total = sum(writer.documents.values())
    if not total:
        raise UserError(f"corpus {request.name} has no text in it")
    needed = ("train", "val", "test") if request.test_fraction else ("train", "val")
    for split in needed:
        if not writer.documents[split]:
            raise UserError(
                f"none of the {total} documents of {request.name} fell into {split}: "
                f"give more documents, or raise --{'val' if split == 'train' else split}-fraction"
            )
