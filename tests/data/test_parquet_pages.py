"""The pages of parquet files, as their headers have it: nothing is missed, and nothing that is damaged is believed."""

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.data.corpora import Reading
from oelm.data.parquet_pages import DamagedPageError, Page, pages
from oelm.errors import UserError

TABLE = pa.table(
    {
        "text": [f"document {i} " * (i % 50) for i in range(3000)],
        "null": pa.nulls(3000, pa.string()),
        "true": [i % 3 == 0 for i in range(3000)],
        "nested": [{"list": [i] * (i % 4), "name": str(i)} for i in range(3000)],
    }
)


def written(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


def chunks(file: bytes) -> list[Any]:
    metadata = pq.read_metadata(io.BytesIO(file))
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return [group.column(i) for group in groups for i in range(metadata.num_columns)]


@pytest.mark.parametrize("use_dictionary", [False, True])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("more", [{}, {"write_page_checksum": True, "write_page_index": True}, {"row_group_size": 700}])
def test_pages_add_up_to_their_chunk(
    version: str, compression: str, use_dictionary: bool, more: dict[str, Any]
) -> None:
    options = {"data_page_version": version, "compression": compression, "use_dictionary": use_dictionary, **more}
    small = {"data_page_size": 5000, "dictionary_pagesize_limit": 20_000, "write_batch_size": 100}
    file = written(TABLE, **small, **options)
    for chunk in chunks(file):
        found = list(pages(io.BytesIO(file), chunk))
        assert sum(page.header + page.packed for page in found) == chunk.total_compressed_size
        assert sum(page.header + page.unpacked for page in found) == chunk.total_uncompressed_size
    assert len(list(pages(io.BytesIO(file), chunks(file)[0]))) > 2


def test_a_chunk_without_values_has_no_pages() -> None:
    file = written(TABLE.slice(0, 0))
    assert [list(pages(io.BytesIO(file), chunk)) for chunk in chunks(file)] == [[]] * 5


def walk(content: bytes, length: int | None = None) -> list[Page]:
    """The pages of a chunk with this content, or with no more than `length` of it."""
    size = len(content) if length is None else length
    chunk = {"num_values": 1, "dictionary_page_offset": None, "data_page_offset": 0, "total_compressed_size": size}
    return list(pages(io.BytesIO(content), SimpleNamespace(**chunk)))


SIZES = b"\x15\x00\x15\x0a\x15\x04"  # the fields 1, 2 and 3: a page of type 0, 5 bytes, packed 2


def test_what_else_is_in_a_header_is_passed_over() -> None:
    others = [
        b"\x11\x12",  # true, false
        b"\x13\xff",  # a byte
        b"\x16\xff\xff\x03",  # a number
        b"\x17" + b"\xff" * 8,  # a float
        b"\x18\x03\xff\xff\xff",  # a string
        b"\x19\x31\x01\x02\x01",  # a list of three bools
        b"\x1a\xf5\x10" + b"\xff\x01" * 16,  # a set of sixteen numbers
        b"\x1c\x15\x0e\x1c\x18\x01\xff\x00\x00",  # a struct with a number and a struct
        b"\x19\x2c\x15\x02\x00\x00",  # a list of two structs, the second empty
        b"\x05\x80\x02\x08",  # the field 128
    ]
    header = SIZES + b"".join(others) + b"\x00"
    assert walk((header + b"..") * 2) == [Page(len(header), 2, 5)] * 2


def test_the_last_page_may_be_longer_than_its_chunk_says() -> None:
    """Old writers leave a header out of the length; pyarrow knows."""
    assert walk((SIZES + b"\x00..") * 2, length=11) == [Page(7, 2, 5)] * 2


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x00",
        b"\x15\x00\x15\x0a\x00",  # no packed size
        b"\x15\x00\x16\x0a\x15\x04\x00",  # an unpacked size of another kind
        b"\x15\x00\x15\x09\x15\x04\x00",  # of -5 bytes
        b"\x15\x00\x15\x0a\x15\x03\x00",  # packed, of -2
        b"\x15\x00\x15\x0a\x15\x40\x00",  # packed, beyond the end
        b"\x15\x00\x15\x80\x80\x80\x80\x10\x15\x04\x00",  # of 2 GB
        SIZES + b"\x15" + b"\xff" * 100 + b"\x00",  # a number without end
        SIZES + b"\x18\x64\x00",  # a string beyond the end
        SIZES + b"\x19\xf3\xff\xff\xff\xff\xff\x00\x00",  # a list beyond the end
        SIZES + b"\x1c" * 100 + b"\x00" * 100 + b"\x00",  # structs without bottom
        SIZES + b"\x19\x19" + b"\x19" * 100,  # lists without bottom
        SIZES + b"\x1b\x00\x00",  # a kind that no header has
        SIZES + b"\x05\x84\x80\x08\x02\x00",  # the field 65538, which in 16 bits is 2
    ],
)
def test_what_is_no_header_is_said_to_be_none(header: bytes) -> None:
    with pytest.raises(DamagedPageError, match=r"no page begins at byte 0|bytes 0 to 2 of it are no column"):
        walk(header + b"..")


@given(st.lists(st.sampled_from(SIZES + b"\x00\x00\x18\x19\x1c\xff"), max_size=60).map(bytes))
def test_any_bytes_are_pages_or_damaged(content: bytes) -> None:
    with contextlib.suppress(DamagedPageError):
        assert sum(page.header + page.packed for page in walk(content)) == len(content)


@pytest.mark.parametrize(
    ("place", "damage", "reason"),
    [
        (4, b"\x00", "no page begins at byte 4"),
        (4, b"\xff" * 8, "no page begins at byte 4"),
        (4, SIZES + b"\x00..", "no page begins at byte 13"),
        (7, b"\xff", "no page begins at byte 4"),  # the unpacked size is negative now
        (7, b"\xfe", ""),  # not what it was; that is for pyarrow to find
    ],
)
def test_a_file_with_a_damaged_header_is_named(tmp_path: Path, place: int, damage: bytes, reason: str) -> None:
    path = tmp_path / "a.parquet"
    content = bytearray(written(TABLE, use_dictionary=False))
    content[place : place + len(damage)] = damage
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"a\.parquet is damaged or cut short: {reason}"):
        list(Reading([path]))
