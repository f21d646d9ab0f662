"""`oelm watch`: how all the runs stand, live; and the log of the one that is selected."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from oelm.errors import until_ctrl_c
from oelm.runfolder import RunFolder
from oelm.runs import log, screen, status, table
from oelm.runs.keyboard import Keyboard
from oelm.runs.load import Loads
from oelm.runs.overview import Reader

SECONDS = 2.0  # between two looks at the folders
SECONDS_UNTIL_RESIZED = 0.5  # at most, until a screen of another size is drawn anew
SECONDS_BETWEEN_TABLES = 10.0  # where there is no terminal
LOG_LINES = 500


def watch(places: Sequence[Path]) -> None:
    """Shows runs until somebody leaves; without a terminal, until there is nothing left to watch."""
    for name in ("COLUMNS", "LINES"):  # what was exported once; a terminal's size may change, and rich would not see it
        os.environ.pop(name, None)
    console = Console()
    live = console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty()
    with until_ctrl_c():
        if live:
            os.nice(10)  # where all the processors are busy, a run goes before those who watch it
            _watch_live(places, console)
        else:
            _print_changes(places)


def _watch_live(places: Sequence[Path], console: Console) -> None:
    watcher = Watcher(places)
    with Keyboard(sys.stdin) as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        while not watcher.left:
            watcher.look()
            size, until = console.size, time.monotonic() + SECONDS
            live.update(watcher.draw(*size), refresh=True)
            while not watcher.left and (rest := until - time.monotonic()) > 0:
                keys = keyboard.pressed(min(rest, SECONDS_UNTIL_RESIZED))
                for key in keys:
                    watcher.press(key)
                if keys or console.size != size:
                    size = console.size
                    live.update(watcher.draw(*size), refresh=True)
        live.update(Text(), refresh=True)  # tmux leaves parts of a screen that was resized behind


class Watcher:
    """What is known of the runs, and where in it somebody is."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.left = False
        self._places, self._title = places, f"oelm watch {' '.join(map(str, places))}"
        self._reader, self._loads = Reader(), Loads()
        self._sorts, self._position = list(table.SORTS), screen.Position()
        self._rows: list[table.Row] = []
        self._page = 10
        self._log: str | None = None  # the run whose log is open
        self._up = 0  # lines below those of the log that are seen

    def look(self) -> None:
        """Reads how the runs stand now."""
        runs = self._reader.overviews(*self._places)
        names = table.names(runs, self._places)
        self._put([self._loads.row(run, names[run.path]) for run in runs])

    def _put(self, rows: list[table.Row]) -> None:
        """Rows in the order that was chosen; the selection stays on its run, unless it is the first."""
        selected = self._selected if self._position.selected else None
        order = {run.path: i for i, run in enumerate(table.sorted_by(self._sorts[0], [row.run for row in rows]))}
        self._rows = sorted(rows, key=lambda row: order[row.run.path])
        if selected in order:
            self._position.selected = order[selected]

    @property
    def _selected(self) -> str | None:
        return self._rows[self._position.selected].run.path if self._rows else None

    def draw(self, width: int, height: int) -> Text:
        self._page = max(1, height - screen.AROUND)
        if self._log is None:
            lines = screen.draw_runs(self._rows, self._position, self._title, self._sorts[0], width, height)
        else:
            said = log.said(RunFolder(Path(self._log)), LOG_LINES)
            lines, self._up = screen.draw_log(said, self._up, self._log, width, height)
        text = Text("\n", no_wrap=True, overflow="crop", end="").join(lines)
        text.no_wrap, text.overflow = True, "crop"
        return text

    def press(self, key: str) -> None:
        far = 10**9
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -self._page, "page down": self._page}
        steps |= {"home": -far, "g": -far, "end": far, "G": far}
        if self._log is not None:
            if key in ("q", "escape", "enter", "l"):
                self._log = None
            self._up = max(0, self._up - steps.get(key, 0))
        elif key in ("q", "escape"):
            self.left = True
        elif key in ("enter", "l"):
            self._log, self._up = self._selected, 0
        elif key == "s":
            self._sorts = [*self._sorts[1:], self._sorts[0]]
            self._put(self._rows)
        else:
            self._position.selected += steps.get(key, 0)
            self._position.within(len(self._rows), self._page)


def _print_changes(places: Sequence[Path]) -> None:
    """A table whenever something has changed, until nothing is running or waiting any more."""
    reader, before = Reader(), None
    while True:
        runs = reader.overviews(*places)
        if runs != before:
            status.print_runs(runs, places)
            sys.stdout.flush()
        if not any(run.active or run.state == "waiting" for run in runs):
            return
        before = runs
        time.sleep(SECONDS_BETWEEN_TABLES)
