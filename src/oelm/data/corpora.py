"""Where text comes from: hub datasets, anyone's own files, and the built-in storybook.

A corpus is an iterator over documents. Nothing here holds more in memory than a piece of a plain text, a line of JSON,
or a few pages of a parquet file; lines and pages are as long as their writer made them, so very long ones are refused.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import json
import lzma
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from oelm.data.parquet_pages import DamagedPageError, pages
from oelm.data.tokenizer import END_OF_TEXT
from oelm.data.xz import open_xz
from oelm.errors import UserError, is_disk_full

Documents = Iterator[str]

LONGEST_PIECE = 4_000_000  # characters; a longer document becomes several, to bound memory
LONGEST_LINE = 16_000_000  # characters of a line of JSON, which can take 30 bytes each to parse
LARGEST_PAGE = 64_000_000  # bytes of a parquet page; to read it takes up to six times as much memory
RETRIES = 3  # of the layer above the one that tries five times, for 23 seconds
MOST_ROWS = 64  # at once; fewer where pages, and so perhaps documents, are large


@dataclass(frozen=True)
class HubCorpus:
    """A dataset on the Hugging Face hub, of which the train split is taken and split anew by content."""

    path: str
    name: str | None = None
    revision: str | None = None
    join: Callable[[Iterable[str]], Documents] = iter
    val_fraction: float = 0.01
    test_fraction: float = 0.01

    def documents(self) -> Documents:
        import datasets

        # Two layers, one within the other, take a connection up again that is cut: for ten minutes, left to themselves.
        datasets.config.STREAMING_READ_MAX_RETRIES, datasets.config.STREAMING_READ_RETRY_INTERVAL = RETRIES, 1
        self._ask_for_it()
        try:
            rows = datasets.load_dataset(self.path, self.name, split="train", revision=self.revision, streaming=True)
            yield from self.join(self._texts(rows))
        # Network errors reach us as OSError, or as RuntimeError from a client closed by one; a dataset that is gone
        # as ValueError.
        except (OSError, RuntimeError, ValueError) as error:
            raise self._unreachable(error) from error

    def _texts(self, rows: Iterable[dict[str, Any]]) -> Documents:
        for row in rows:
            text = row.get("text", row)
            if isinstance(text, str):
                yield text
            elif text is not None:
                raise UserError(
                    f"the hub dataset {self.path} has no column 'text' that holds text (it has: {', '.join(row)}), so "
                    f"it has changed; download it and pass its files with --source and --text-field"
                )

    def _ask_for_it(self) -> None:
        """Says at once that there is no such hub, or no such dataset on it: `datasets` tries for half a minute."""
        import huggingface_hub

        try:
            huggingface_hub.HfApi().dataset_info(self.path, timeout=10)
        except Exception as error:  # the hub's client has had several libraries beneath it, each with errors of its own
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> UserError:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        return UserError(
            f"the hub dataset {self.path} could not be read to its end: {reason}. Nothing was kept. Check the "
            f"connection (and HF_ENDPOINT, if set) and run the command again, or pass local files with --source"
        )


def articles(lines: Iterable[str]) -> Documents:
    """WikiText's rows are lines: rejoins them into articles, which begin at a heading like ' = Title = '."""
    heading = re.compile(r"^ = [^=].* = \n?$")
    article: list[str] = []
    for line in lines:
        if heading.match(line) and any(part.strip() for part in article):
            yield "".join(article)
            article = []
        article.append(line)
    yield "".join(article)


HUB = {
    "tinystories": HubCorpus("roneneldan/TinyStories"),
    # The dataset is a loading script, which `datasets` no longer runs; the hub's own parquet conversion is not.
    "openwebtext": HubCorpus(
        "Skylion007/openwebtext", revision="refs/convert/parquet", val_fraction=0.001, test_fraction=0.001
    ),
    "wikitext103": HubCorpus("Salesforce/wikitext", "wikitext-103-raw-v1", join=articles),
}
NAMES = ("storybook", *HUB)


def in_pieces(documents: Iterable[str]) -> Documents:
    """The documents, each that is longer than LONGEST_PIECE as several."""
    for document in documents:
        for start in range(0, len(document), LONGEST_PIECE):
            yield document[start : start + LONGEST_PIECE]


FORMATS = (".txt", ".jsonl", ".parquet")
COMPRESSIONS = ("", ".xz", ".gz", ".zst")
SUFFIXES = tuple(kind + compression for kind in FORMATS for compression in COMPRESSIONS)


def find_files(sources: Iterable[Path]) -> list[Path]:
    """The text files that paths name, those of a folder in the order of their names."""
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            inside = sorted(p for p in source.rglob("*") if not p.is_dir() and _name(p).endswith(SUFFIXES))
            if broken := [p for p in inside if not p.exists()]:
                raise UserError(f"--source {source}: {broken[0]} is a link to nothing; mend or remove it")
            if not inside:
                raise UserError(
                    f"--source {source} holds no file that ends in {', '.join(FORMATS)} (or .xz, .gz, .zst)"
                )
            files += inside
        elif not source.exists():
            raise UserError(f"--source {source}: no such file or folder")
        elif not _name(source).endswith(SUFFIXES):
            raise UserError(f"--source {source}: not one of {', '.join(FORMATS)}, plain or as .xz, .gz, .zst")
        else:
            files.append(source)
    return list({file.resolve(): file for file in files}.values())  # one that was named twice counts once


def _name(path: Path) -> str:
    """A file's name, as far as it says what is in it: .JSONL is .jsonl."""
    return path.name.lower()


class Reading(Iterator[str]):
    """The documents of all files, one after the other; and how much of the files was read."""

    def __init__(self, files: Iterable[Path], text_field: str = "text") -> None:
        self._files, self._text_field = list(files), text_field
        self._size = sum(path.stat().st_size for path in self._files)
        self._done = 0
        self._file: IO[bytes] | None = None
        self._documents = self._read()

    def __next__(self) -> str:
        return next(self._documents)

    @property
    def share(self) -> float | None:
        """From 0 to 1, but within a parquet file, which is not read in its order; None where nobody can tell."""
        within = self._file.tell() if self._file and self._file.seekable() else 0
        return (self._done + within) / self._size if self._size else None

    def _read(self) -> Documents:
        import pyarrow as pa

        cut = (EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError, DamagedPageError, pa.ArrowException)
        for path in self._files:
            try:
                with path.open("rb") as file:
                    self._file = None if _kind(path) == ".parquet" else file
                    yield from _read_file(path, file, self._text_field)
            except cut as error:
                raise _damaged(path, error) from None
            except OSError as error:
                if error.errno:  # the system's word, such as "permission denied"
                    raise
                raise _damaged(path, error) from None  # a decompressor's
            finally:
                self._file = None
            self._done += path.stat().st_size


def _damaged(path: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split())
    if "too much memory" in reason:  # zstd's word
        return UserError(f"{path} was compressed with too large a window; compress it again without --long")
    return UserError(f"{path} is damaged or cut short: {reason}; get it again, or leave it out")


def _kind(path: Path) -> str:
    return next(kind for kind in FORMATS if _name(path).endswith(tuple(kind + c for c in COMPRESSIONS)))


def _read_file(path: Path, file: IO[bytes], text_field: str) -> Documents:
    kind = _kind(path)
    packed = not _name(path).endswith(kind)
    if packed and path.is_file() and not path.stat().st_size:  # which gzip and zstd would take for an empty text
        raise EOFError("it is empty")
    with _unpacked(path, file) as stream:
        if kind == ".parquet":
            yield from _parquet(path, stream, text_field)
        else:
            lines = io.TextIOWrapper(stream, encoding="utf-8-sig")  # with or without a mark at its start
            try:
                yield from _plain(lines) if kind == ".txt" else _jsonl(path, lines, text_field)
            except UnicodeDecodeError:
                raise UserError(f"{path}{_where_not_utf8(path)}: not UTF-8 text; convert it first") from None


def _unpacked(path: Path, file: IO[bytes]) -> IO[bytes]:
    if _name(path).endswith(".xz"):
        return cast(IO[bytes], open_xz(file))
    if _name(path).endswith(".gz"):
        return cast(IO[bytes], gzip.open(file))
    if _name(path).endswith(".zst"):
        import pyarrow as pa

        return cast(IO[bytes], pa.input_stream(file, compression="zstd"))
    return file


def _where_not_utf8(path: Path) -> str:
    """Reads a text again, up to the first byte that is not UTF-8, to name its line."""
    if not path.is_file():  # a pipe can be read only once
        return ""
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with path.open("rb") as file, _unpacked(path, file) as stream:
        while block := stream.read(1 << 20):
            try:
                decoder.decode(block)
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                return f", line {line}"
            line += block.count(b"\n")
    return ", at its very end"  # within a character


def _plain(lines: IO[str]) -> Documents:
    document: list[str] = []
    size = 0
    while line := lines.readline(LONGEST_PIECE):
        ends = line.rstrip() == END_OF_TEXT
        if ends or size + len(line) > LONGEST_PIECE:
            yield "".join(document)
            document, size = [], 0
        if not ends:
            document.append(line)
            size += len(line)
    yield "".join(document)


def _jsonl(path: Path, lines: IO[str], text_field: str) -> Documents:
    for number in itertools.count(1):
        line = lines.readline(LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > LONGEST_LINE:
            raise UserError(
                f"{path}, line {number}: longer than {LONGEST_LINE:,} characters; make several documents of it, or "
                f"give it as .txt, which may have any length"
            )
        if not line.strip():
            continue
        try:
            text = json.loads(line)[text_field]
        except (ValueError, RecursionError, KeyError, TypeError):
            text = None
        if not isinstance(text, str):
            raise UserError(f"{path}, line {number}: not a JSON object with a text field {text_field!r} (--text-field)")
        yield text


def _parquet(path: Path, stream: IO[bytes], text_field: str) -> Documents:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile() as unpacked:
        if not _name(path).endswith(".parquet"):  # parquet is read by seeking, which a compressed stream cannot do well
            _unpack(path, stream, unpacked)
            stream = unpacked
        table: Any = pq.ParquetFile(stream, pre_buffer=False, buffer_size=1 << 20)
        if text_field not in table.schema_arrow.names:
            columns = ", ".join(table.schema_arrow.names)
            raise UserError(f"{path} has no column {text_field!r} (--text-field); it has: {columns}")
        kind = table.schema_arrow.field(table.schema_arrow.names.index(text_field)).type
        if not _is_text(kind):
            raise UserError(f"{path}: the column {text_field!r} (--text-field) holds {kind}, not text")
        limit = LARGEST_PAGE // 2 if pa.types.is_dictionary(kind) else LARGEST_PAGE  # a dictionary takes ten times
        largest = _largest_page(path, stream, table.metadata, text_field, limit)
        rows = min(MOST_ROWS, limit // largest)  # a document is no larger than the page it comes from
        for batch in table.iter_batches(batch_size=rows, columns=[text_field]):
            yield from _texts(batch.column(batch.schema.names.index(text_field)))  # a.b is also part b of a column a


def _unpack(path: Path, stream: IO[bytes], into: IO[bytes]) -> None:
    try:
        shutil.copyfileobj(stream, into)
    except OSError as error:
        if not is_disk_full(error):
            raise
        place = tempfile.gettempdir()
        raise UserError(f"no space left in {place}, where {path} is unpacked; set TMPDIR to a larger place") from None


def _largest_page(path: Path, stream: IO[bytes], metadata: Any, text_field: str, limit: int) -> int:
    """The bytes of the largest page of the column; one that is too large to be held is refused."""
    columns = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path == text_field]
    largest = 1
    for group, column in itertools.product(range(metadata.num_row_groups), columns):
        chunk = metadata.row_group(group).column(column)
        size = max((max(page.packed, page.unpacked) for page in pages(stream, chunk)), default=0)
        if size > limit:
            raise UserError(
                f"{path}: row group {group} has a page of {size / 1e6:,.0f} MB, more than {limit / 1e6:,.0f}; "
                f"write the file again with smaller pages (pyarrow: plain strings, write_batch_size=1) or documents"
            )
        largest = max(largest, size)
    return largest


def _texts(column: Any) -> Documents:
    """The documents of a column, long ones in pieces: a string can take four times the bytes of its text."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    for text in column:
        if text.is_valid:
            characters = io.TextIOWrapper(pa.BufferReader(text.as_buffer()), encoding="utf-8", newline="")
            while piece := characters.read(LONGEST_PIECE):
                yield piece


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(values) or pa.types.is_large_string(values) or pa.types.is_string_view(values))
