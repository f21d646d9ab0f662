"""How large the pages of a parquet file are, which pyarrow reads whole, and whose sizes it does not tell beforehand.

A column chunk is a sequence of pages. Each begins with a header that says how many bytes follow, and how many they are
once unpacked; the footer only knows the sums. So the headers are read here, from one to the next, and nothing else.
A header is a struct in Thrift's compact protocol, of which this is as much as it takes to find two fields.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

STOP, TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(13)
FIXED_SIZE = {TRUE: 0, FALSE: 0, BYTE: 1, DOUBLE: 8}
UNPACKED_SIZE, PACKED_SIZE = 2, 3  # the numbers of the two fields
LONGEST_HEADER = 16 << 20  # bytes, as for pyarrow: some writers repeat a page's least and greatest document there
DEEPEST = 64  # structs and lists in each other, as for Thrift


class DamagedPageError(Exception):
    """Where a page should begin, none does."""


class Page(NamedTuple):
    """What the parts of a page take, in bytes; `packed` is its content as it stands in the file."""

    header: int
    packed: int
    unpacked: int


def pages(stream: IO[bytes], chunk: Any) -> Iterator[Page]:
    """The pages of a column chunk, which pyarrow describes by `chunk`."""
    if not chunk.num_values:  # where pages begin is then left open
        return
    place = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
    end = place + chunk.total_compressed_size
    end_of_file = stream.seek(0, os.SEEK_END)
    if not 0 <= place < end <= end_of_file:
        raise DamagedPageError(f"bytes {place} to {end} of it are no column")
    while place < end:
        # Beyond the chunk, too: old writers leave the first header out of its length.
        page = _Header(stream, place, end_of_file).read()
        yield page
        place += page.header + page.packed


class _Header:
    """The header of the page that begins at `start`, all of which lies before `end`."""

    def __init__(self, stream: IO[bytes], start: int, end: int) -> None:
        self._stream, self._start, self._end = stream, start, end
        self._place = stream.seek(start)

    def read(self) -> Page:
        numbers = {}
        for field, kind in self._fields():
            if kind == I32:
                numbers[field] = self._signed()
            else:
                self._skip(kind)
        size = self._place - self._start
        packed, unpacked = numbers.get(PACKED_SIZE, -1), numbers.get(UNPACKED_SIZE, -1)
        if packed not in range(self._end - self._place + 1) or unpacked not in range(2**31):
            raise self._damaged()
        return Page(size, packed, unpacked)

    def _fields(self) -> Iterator[tuple[int, int]]:
        """The number and kind of each field of a struct; whoever asks for the next has read the value of the last."""
        field = 0
        while True:
            step, kind = divmod(self._byte(), 16)
            if kind == STOP:
                return
            field = field + step if step else self._signed()
            if field not in range(1, 2**15):
                raise self._damaged()
            yield field, kind

    def _skip(self, kind: int, depth: int = 0) -> None:
        if kind in FIXED_SIZE:
            self._pass(FIXED_SIZE[kind])
        elif kind in (I16, I32, I64):
            self._unsigned()
        elif kind == BINARY:
            self._pass(self._unsigned())
        elif kind in (LIST, SET) and depth < DEEPEST:
            self._skip_list(depth)
        elif kind == STRUCT and depth < DEEPEST:
            for _, inner in self._fields():
                self._skip(inner, depth + 1)
        else:  # nothing that a page's header has
            raise self._damaged()

    def _skip_list(self, depth: int) -> None:
        size, kind = divmod(self._byte(), 16)
        for _ in range(self._unsigned() if size == 15 else size):
            self._skip(BYTE if kind in (TRUE, FALSE) else kind, depth + 1)

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 if value % 2 == 0 else ~(value >> 1)

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise self._damaged()

    def _byte(self) -> int:
        self._advance(1)
        return int.from_bytes(self._stream.read(1), "big")

    def _pass(self, size: int) -> None:
        self._advance(size)
        self._stream.seek(self._place)

    def _advance(self, size: int) -> None:
        self._place += size
        if self._place > min(self._end, self._start + LONGEST_HEADER):
            raise self._damaged()

    def _damaged(self) -> DamagedPageError:
        return DamagedPageError(f"no page begins at byte {self._start}")
