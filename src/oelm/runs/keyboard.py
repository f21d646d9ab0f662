"""Keys as they are pressed, on a terminal that is given back as it was."""

from __future__ import annotations

import os
import select
import termios
import tty
from types import TracebackType
from typing import TextIO

KEYS = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1b[4~": "end",
    b"\x1b": "escape",
    b"\r": "enter",
    b"\n": "enter",
}
SECONDS_WITHIN_A_SEQUENCE = 0.05  # over a slow line the rest of an arrow key may come after its escape


class Keyboard:
    """Reads single keys while it is entered; Ctrl-C remains what it is, Ctrl-Z does nothing."""

    def __init__(self, file: TextIO) -> None:
        self._terminal = file.fileno()

    def __enter__(self) -> Keyboard:
        self._before = termios.tcgetattr(self._terminal)
        tty.setcbreak(self._terminal)
        mode = termios.tcgetattr(self._terminal)
        mode[6][termios.VSUSP] = b"\x00"  # stopped, it would leave the shell with its screen
        termios.tcsetattr(self._terminal, termios.TCSANOW, mode)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)

    def pressed(self, seconds: float) -> list[str]:
        """The keys that are pressed next, waiting so long for the first; the end of the terminal is a q for good."""
        if not self._ready(seconds):
            return []
        data = os.read(self._terminal, 1024)
        while data.endswith((b"\x1b", b"\x1b[", b"\x1bO")) and self._ready(SECONDS_WITHIN_A_SEQUENCE):
            data += os.read(self._terminal, 1024)
        return keys_in(data) if data else ["q", "q"]

    def _ready(self, seconds: float) -> bool:
        return bool(select.select([self._terminal], [], [], seconds)[0])


def keys_in(data: bytes) -> list[str]:
    """What was pressed: names of keys, and characters as they are."""
    keys = []
    while data:
        code = next((code for code in KEYS if data.startswith(code)), data[:1])
        keys.append(KEYS.get(code, code.decode(errors="replace")))
        data = data[len(code) :]
    return keys
