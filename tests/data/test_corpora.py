"""Anyone's own text: every format, every compression, and clear words for what cannot be read."""

import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oelm.data import corpora
from oelm.errors import UserError

DOCUMENTS = ["The first document.\nIt has two lines.\n", "Second: übung 文\n", "Third\n"]


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data))


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".xz": lzma.compress,
    ".gz": gzip.compress,
    ".zst": zstd,
}


def encoded(kind: str, documents: list[str] = DOCUMENTS) -> bytes:
    if kind == ".txt":
        return "<|endoftext|>\n".join(documents).encode()
    if kind == ".jsonl":
        return "\n".join(json.dumps({"text": text, "n": 1}) for text in documents).encode()
    return parquet(pa.array(documents))


def parquet(text: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": range(len(text)), "text": text}), sink)
    return bytes(sink.getvalue())


def read(*paths: Path, text_field: str = "text") -> list[str]:
    return list(corpora.Reading(corpora.find_files(paths), text_field))


def test_blanks_after_a_separator_do_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n<|endoftext|> \ntwo\n<|endoftext|>\r\nthree\n")
    assert [text.strip() for text in read(tmp_path / "a.txt")] == ["one", "two", "three"]


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("kind", corpora.FORMATS)
def test_every_format_and_compression_gives_the_same_documents(tmp_path: Path, kind: str, compression: str) -> None:
    path = tmp_path / f"my.corpus{kind}{compression}"
    path.write_bytes(COMPRESS[compression](encoded(kind)))
    assert read(path) == DOCUMENTS


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_text_column_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    (tmp_path / "a.parquet").write_bytes(parquet(pa.array(DOCUMENTS).cast(kind)))
    assert read(tmp_path / "a.parquet") == DOCUMENTS


def test_the_last_ending_says_what_a_file_is(tmp_path: Path) -> None:
    path = tmp_path / "export.txt.jsonl"
    path.write_bytes(encoded(".jsonl"))
    assert read(path) == DOCUMENTS


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "part.txt").write_text("two")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "notes.md").write_text("not a corpus")
    assert read(tmp_path) == ["one", "two"]


@pytest.mark.parametrize("text", ["word " * 500 + "\n", "a line\n" * 500])
@pytest.mark.parametrize("kind", corpora.FORMATS)
def test_a_long_document_comes_in_pieces(tmp_path: Path, kind: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "LONGEST_PIECE", 100)
    path = tmp_path / f"long{kind}"
    path.write_bytes(encoded(kind, [text, "short\n"]))
    *pieces, last = corpora.in_pieces(read(path))
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 100
    assert last == "short\n"


def test_a_long_document_of_a_parquet_file_is_never_one_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "LONGEST_PIECE", 100)
    text = "für 文 😀\r\n" * 999
    (tmp_path / "long.parquet").write_bytes(encoded(".parquet", [text]))
    pieces = read(tmp_path / "long.parquet")
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 100


@pytest.mark.parametrize("kind", [".txt", ".jsonl"])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, kind: str) -> None:
    (tmp_path / f"a{kind}").write_bytes(b"\xef\xbb\xbf" + encoded(kind))
    assert read(tmp_path / f"a{kind}") == DOCUMENTS


def test_a_line_of_json_too_long_to_be_parsed_in_bounded_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(encoded(".jsonl", ["short", "x" * 100]))
    monkeypatch.setattr(corpora, "LONGEST_LINE", 100)
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: longer than 100 characters; make several documents of it"):
        read(path)


@pytest.mark.parametrize(("kind", "limit"), [(pa.string(), 3), (pa.dictionary(pa.int32(), pa.string()), 6)])
def test_a_parquet_page_too_large_to_be_held_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, limit: int
) -> None:
    texts = pa.array([f"{i:02}" * 50_000 for i in range(40)])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": range(40), "text": texts.cast(kind)}), path)
    monkeypatch.setattr(corpora, "LARGEST_PAGE", limit * 1_000_000)
    with pytest.raises(
        UserError, match=r"a\.parquet: row group 0 has a page of 4 MB, more than 3; .*plain strings, write_batch_size=1"
    ):
        read(path)
    pq.write_table(pa.table({"n": range(40), "text": texts}), path, write_batch_size=1)
    assert read(path) == texts.to_pylist()


def test_a_parquet_file_may_have_row_groups_without_rows(tmp_path: Path) -> None:
    table = pa.table({"text": DOCUMENTS})
    with pq.ParquetWriter(tmp_path / "a.parquet", table.schema) as writer:
        for part in (table.slice(0, 0), table, table.slice(0, 0)):
            writer.write_table(part)
    assert read(tmp_path / "a.parquet") == DOCUMENTS


def test_wikitext_lines_become_articles_again() -> None:
    lines = ["", " = First = \n", "", " Text . \n", " = = Part = = \n", " More . \n", " = Second = \n", " End . \n"]
    assert list(corpora.articles(lines)) == [
        " = First = \n Text . \n = = Part = = \n More . \n",
        " = Second = \n End . \n",
    ]


@pytest.mark.parametrize("share", [0, 0.5])
@pytest.mark.parametrize("compression", [".xz", ".gz", ".zst"])
def test_a_file_cut_short_is_named(tmp_path: Path, compression: str, share: float) -> None:
    whole = COMPRESS[compression]("\n".join(str(i**3) for i in range(9000)).encode())
    path = tmp_path / f"cut.txt{compression}"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UserError, match=r"cut\.txt.* is damaged or cut short"):
        read(path)


def test_a_file_counts_once_however_often_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.TXT"  # whose ending says the same in capitals
    path.write_text("one")
    assert corpora.find_files([path, tmp_path, tmp_path / "." / "a.TXT"]) == [path]
    assert read(tmp_path) == ["one"]


def test_a_link_to_nothing_among_the_files_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "gone.jsonl")
    with pytest.raises(UserError, match=r"b\.jsonl is a link to nothing"):
        corpora.find_files([tmp_path])


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(b"some text " * 1000))
    content[10:18] = b"\xff" * 8
    (tmp_path / "a.txt.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.txt\.gz is damaged or cut short"):
        read(tmp_path / "a.txt.gz")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "fine"}\n{"tex": 1}\n', r"a\.jsonl, line 2: not a JSON object with a text field 'text'"),
        ("a.jsonl", b"{", r"a\.jsonl, line 1"),
        ("a.jsonl", b'{"text": "fine"}\n{"n": ' + b"9" * 5000 + b', "text": "fine"}', r"a\.jsonl, line 2"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl, line 1"),
        ("a.jsonl", b'{"text": NaN}', r"a\.jsonl, line 1"),
        ("a.jsonl", b'\n{"text": "\xff"}', r"a\.jsonl, line 2: not UTF-8 text"),
        ("a.txt", b"fine\n\xc3\xbc\nf\xfcr", r"a\.txt, line 3: not UTF-8 text"),
        ("a.txt", "fine, für".encode()[:-2], r"a\.txt, at its very end: not UTF-8 text"),
        ("a.parquet", b"PAR1nonsense", r"a\.parquet is damaged"),
        ("a.parquet", parquet(pa.array([b"\xff"]).view(pa.string())), r"a\.parquet is damaged"),
        ("a.parquet", parquet(pa.array([7])), r"the column 'text' \(--text-field\) holds int64, not text"),
        ("a.parquet", parquet(pa.array([b"7"])), r"the column 'text' \(--text-field\) holds binary, not text"),
        ("a.pdf", b"", r"not one of \.txt, \.jsonl, \.parquet"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name)


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(encoded(".parquet"))
    with pytest.raises(UserError, match=r"no column 'body' \(--text-field\); it has: n, text"):
        read(tmp_path / "a.parquet", text_field="body")


def test_a_missing_path_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        read(tmp_path / "none")
    with pytest.raises(UserError, match="holds no file that ends in"):
        read(tmp_path)


def test_a_column_is_not_taken_for_a_part_of_another(tmp_path: Path) -> None:
    parts = pa.array([{"b": "wrong"}] * 3)
    pq.write_table(pa.table({"a": parts, "a.b": ["one", "two", "three"]}), tmp_path / "dotted.parquet")
    assert read(tmp_path / "dotted.parquet", text_field="a.b") == ["one", "two", "three"]
