"""Preparation stays below 1 GB of memory, however long the documents."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.prepare import peak_memory
from oelm.data import corpora
from oelm.errors import UserError


def large_documents(folder: Path) -> Path:
    """As much text as may stand in one page, in documents of megabytes, among many short ones."""
    size = 3_000_000
    words = "".join(f"w{i * 7919 % 1_000_003} " for i in range(size // 7))[:size]
    short = [f"document {i}" for i in range(50_000)]
    path = folder / "large.parquet"
    texts = short + [words] * (corpora.LARGEST_PAGE // size - 1) + short
    pq.write_table(pa.table({"text": texts}), path, use_dictionary=False)
    return path


def the_largest_document(folder: Path) -> Path:
    """It fills a page, which is a dictionary, and as one string it would take four times the memory."""
    text = "word " * (corpora.LARGEST_PAGE // 5 - 100) + "😀"
    path = folder / "largest.parquet"
    pq.write_table(pa.table({"text": [text, "short", text]}), path)
    return path


def a_long_line(folder: Path) -> Path:
    """As long as may be, all of it in escapes, which take the most memory to parse."""
    path = folder / "long.jsonl"
    path.write_text('{"text": "' + "\\u6587" * (corpora.LONGEST_LINE // 6 - 10) + '"}\n')
    return path


def a_line_of_many_things(folder: Path) -> Path:
    """Nothing takes more memory for a character than empty objects beside a sign that takes four bytes."""
    path = folder / "many.jsonl"
    path.write_text('{"text": "hello 😀", "more": [' + "{}," * (corpora.LONGEST_LINE // 3 - 20) + "{}]}\n")
    return path


def one_endless_word(folder: Path) -> Path:
    path = folder / "endless.txt"
    path.write_text("文" * 10_000_000)
    return path


@pytest.mark.parametrize(
    ("corpus", "more"),
    [
        (large_documents, ()),
        (the_largest_document, ()),
        (a_long_line, ()),
        (a_line_of_many_things, ()),
        (one_endless_word, ()),
        (one_endless_word, ("--vocab-size", "1024")),
    ],
)
def test_memory_is_bounded(tmp_path: Path, corpus: Callable[[Path], Path], more: tuple[str, ...]) -> None:
    some = tmp_path / "some.txt"
    some.write_text("<|endoftext|>\n".join(f"document {i}\n" for i in range(400)))
    # The most is taken at the start; the rest is left out to save time.
    flags = ("--data-dir", str(tmp_path), "--max-tokens", "5000000", *more)
    peak = peak_memory("prepare", "mine", *flags, "--source", str(some), str(corpus(tmp_path)))
    assert peak < 1000, f"{peak:.0f} MB"


def test_a_page_too_large_is_refused_however_many_short_documents_are_around_it(tmp_path: Path) -> None:
    size = 1_000_000
    short = [f"document {i}" for i in range(100_000)]
    path = tmp_path / "mixed.parquet"
    texts = short + ["x" * size] * (corpora.LARGEST_PAGE // size + 1) + short
    pq.write_table(pa.table({"text": texts}), path, use_dictionary=False)
    with pytest.raises(UserError, match=r"mixed\.parquet: row group 0 has a page of \d+ MB, more than 64"):
        next(corpora.Reading([path]))
