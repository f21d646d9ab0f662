"""What `oelm watch` draws: the list of runs, or the log of one, as lines for a screen of a given size."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from oelm.runs import table
from oelm.runs.overview import Overview, plain
from oelm.runs.status import counts
from oelm.wording import padded, width_of

STYLES = {
    **{"running": "green", "starting": "green", "waiting": "yellow", "interrupted": "yellow"},
    **{"dead": "red", "failed": "red", "unreadable": "red", "finished": ""},
}
TO_THE_LEFT = ("run", "state", "progress", "device")
KEYS = "↑↓ select  Enter log  s sort  q quit"
LOG_KEYS = "↑↓ scroll  End newest  q back"
AROUND = 6  # lines of the list that are no runs: title, headings, two of the selected run, counts, keys


@dataclass
class Position:
    """Where somebody is in a list that is longer than the screen: what is selected, and what is on top."""

    selected: int = 0
    top: int = 0

    def within(self, count: int, room: int) -> range:
        """Keeps the selection in the list and on the screen; the part of the list that is to be seen."""
        self.selected = max(0, min(self.selected, count - 1))
        self.top = max(self.selected - room + 1, min(self.top, self.selected, count - room), 0)
        return range(self.top, min(self.top + room, count))


def draw_runs(
    rows: Sequence[table.Row], position: Position, title: str, sort: str, width: int, height: int
) -> list[Text]:
    """The list, with the selected run's folder and message below it."""
    seen = position.within(len(rows), max(1, height - AROUND))
    headings, cells = table.fitting(rows, width, live=True)
    widths = [max(map(width_of, column)) for column in zip(headings, *cells, strict=True)]
    lines = [
        _ends(title, f"sorted by {sort}", width, "bold reverse"),
        Text(_line(headings, headings, widths), style="bold"),
    ]
    for i in seen:
        text = padded(_line(headings, cells[i], widths), width)
        lines.append(Text(text, style="reverse" if i == position.selected else STYLES[rows[i].run.state]))
    lines += [Text()] * (height - AROUND - len(seen))
    runs = [row.run for row in rows]
    lines.append(_about(runs[position.selected], width) if runs else Text("no runs yet", style="dim"))
    lines.append(Text(_cut(_unseen(rows[position.selected], headings), width), style="dim") if runs else Text())
    lines.append(Text(_cut(counts(runs), width)))
    hidden = {"above": seen.start, "below": len(rows) - seen.stop}
    where = ", ".join(f"{count} {side}" for side, count in hidden.items() if count)
    return [*lines, _ends(KEYS, where, width, "dim")][:height]


def draw_log(said: Sequence[str], up: int, title: str, width: int, height: int) -> tuple[list[Text], int]:
    """The end of a log, or a part further up; and how far up that is, which ends at the beginning."""
    room = max(1, height - 2)
    wrapped = [part for line in said for part in textwrap.wrap(_plain(line), width, tabsize=4) or [""]]
    up = max(0, min(up, len(wrapped) - room))
    end = len(wrapped) - up
    lines = [Text(line) for line in wrapped[max(0, end - room) : end]] or [Text("nothing said yet", style="dim")]
    lines += [Text()] * (room - len(lines))
    where = f"{up} lines below" if up else ""
    return [_ends(title, "", width, "bold reverse"), *lines, _ends(LOG_KEYS, where, width, "dim")][:height], up


def _ends(left: str, right: str, width: int, style: str) -> Text:
    """A line with something at either end; where there is no room for both, the right one stays."""
    left = _cut(left, max(0, width - len(right) - 2)) if right else _cut(left, width)
    return Text(_cut(f"{left}{right:>{width - len(left)}}", width), style=style)


def _line(headings: Sequence[str], cells: Sequence[str], widths: Sequence[int]) -> str:
    return (" " * table.GAP).join(
        padded(cell, width, left=heading in TO_THE_LEFT)
        for heading, cell, width in zip(headings, cells, widths, strict=True)
    )


def _about(run: Overview, width: int) -> Text:
    path = table.shortened(plain(run.path), width // 2 if run.message else width)
    return Text(_cut(f"{path}: {run.message}" if run.message else path, width), style=STYLES[run.state])


def _unseen(row: table.Row, headings: Sequence[str]) -> str:
    """What the columns that had to give way would say of a run."""
    hidden = [column for column in table.COLUMNS if column.heading not in headings]
    return "  ".join(f"{column.heading} {column.cell(row)}" for column in hidden if column.cell(row) != table.NONE)


def _cut(text: str, width: int) -> str:
    """Text that fits, cut between words."""
    if width_of(text) <= width:
        return text
    room = text[: max(0, width - 1)]
    while width_of(room) > max(0, width - 1):
        room = room[:-1]
    return f"{room[: room.rfind(' ')] if ' ' in room and text[len(room)] != ' ' else room} …"[:width]


def _plain(line: str) -> str:
    """Without what would move the cursor."""
    return "".join(char if char.isprintable() else " " for char in line.expandtabs(4))
