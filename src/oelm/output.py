"""Standard output, which may go away while a command still has work to do."""

from __future__ import annotations

import io
import os
from typing import TextIO


class UntilGone(io.TextIOBase):
    """A file that falls silent instead of failing, for work that must not end with the pipe or terminal showing it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def isatty(self) -> bool:
        return self._file.isatty()

    def write(self, text: str) -> int:
        try:
            print(text, end="", file=self._file)  # which also does where there is no standard output at all
        except OSError:
            self._silence()
        return len(text)

    def flush(self) -> None:
        try:
            print(end="", file=self._file, flush=True)
        except OSError:
            self._silence()

    def _silence(self) -> None:
        """Sends the rest nowhere, at the level of the descriptor: what stands in buffers goes there, too."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._file.fileno())
        os.close(nowhere)
