"""Reading .xz to its very end.

Python's own reader takes whatever does not parse after the first stream for padding, so that a damaged part of an
archive of several, as pixz and `cat` make them, would be lost without a word.
"""

from __future__ import annotations

import io
import lzma
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK = 1 << 16


def open_xz(file: IO[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Streams(file), BLOCK)


class _Streams(io.RawIOBase):
    """The content of one stream after another. Between and after them there may be NULs, and nothing else."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._stream = lzma.LZMADecompressor()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        data = self._next(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _next(self, size: int) -> bytes:
        """At most `size` bytes; none at the end of the file."""
        while True:
            packed = b""
            if self._stream.eof:
                if not (packed := self._after_padding(self._stream.unused_data)):
                    return b""
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
            elif self._stream.needs_input and not (packed := self._file.read(BLOCK)):
                raise EOFError("it ends in the middle")
            if data := self._stream.decompress(packed, size):
                return data

    def _after_padding(self, rest: bytes) -> bytes:
        while not (rest := rest.lstrip(b"\0")):
            if not (rest := self._file.read(BLOCK)):
                return b""
        return rest
