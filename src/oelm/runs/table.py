"""Runs as rows of a table that fits: columns leave in the order of their weight, and no number is ever cut."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from oelm.runs.overview import STATES, Overview, plain
from oelm.wording import formatted, percent, shown, width_of

NONE = "–"
NARROWEST_NAME = 18
GAP = 2  # spaces between two columns
BAR = 8


@dataclass(frozen=True)
class Row:
    """A run with what only its watcher knows."""

    run: Overview
    name: str
    device: str
    load: str = NONE


@dataclass(frozen=True)
class Column:
    heading: str
    weight: int  # where there is no room for all, the lightest goes first
    cell: Callable[[Row], str]
    live: bool = False  # only where it is looked at while it changes


COLUMNS = (
    Column("state", 100, lambda row: row.run.state),
    Column("progress", 70, lambda row: bar(row.run.share), live=True),
    Column("step", 60, lambda row: steps(row.run)),
    Column("loss", 75, lambda row: number(row.run.loss, 4)),
    Column("val PPL", 95, lambda row: number(row.run.val_ppl, 2) + (" test" if row.run.split == "test" else "")),
    Column("best", 50, lambda row: number(row.run.best_ppl, 2)),
    Column("gap", 90, lambda row: NONE if row.run.gap is None else percent(row.run.gap)),
    Column("tokens/s", 40, lambda row: f"{row.run.tokens_per_second:,.0f}" if row.run.tokens_per_second else NONE),
    Column("left", 80, lambda row: NONE if row.run.seconds_left is None else formatted(row.run.seconds_left)),
    Column("device", 30, lambda row: row.device),
    Column("load", 20, lambda row: row.load, live=True),
)
SORTS: dict[str, Callable[[Overview], tuple[object, ...]]] = {
    "state": lambda run: (STATES.index(run.state), run.path),
    "name": lambda run: (run.path,),
    "progress": lambda run: (-(run.share or 0), run.path),
    "val PPL": lambda run: (run.val_ppl is None, run.val_ppl, run.path),
    "gap": lambda run: (run.gap is None, run.gap, run.path),
    "time left": lambda run: (run.seconds_left is None, run.seconds_left, run.path),
}


def sorted_by(sort: str, runs: Sequence[Overview]) -> list[Overview]:
    return sorted(runs, key=SORTS[sort])


def number(value: float | None, digits: int) -> str:
    return NONE if value is None else shown(value, digits)


def steps(run: Overview) -> str:
    return NONE if run.max_steps is None else f"{run.step:,}/{run.max_steps:,}"


def bar(share: float | None) -> str:
    """████▌    52 %"""
    if share is None:
        return NONE
    share = min(max(share, 0.0), 1.0)
    eighths = int(share * BAR * 8)
    return f"{('█' * (eighths // 8) + ' ▏▎▍▌▋▊▉'[eighths % 8]).rstrip():<{BAR}}{int(100 * share):>4} %"


def names(runs: Sequence[Overview], places: Sequence[Path]) -> dict[str, str]:
    """What runs are called: their paths, below the one place that was asked for."""
    paths = [run.path for run in runs]
    whole = len(places) != 1 or str(places[0]) in paths
    return {path: plain(path if whole else os.path.relpath(path, places[0])) for path in paths}


def shortened(name: str, width: int) -> str:
    """A name without its beginning, where there is no room for it: …/oelm_v2/seed-0."""
    if width_of(name) <= width:
        return name
    parts = Path(name).parts
    for i in range(1, len(parts)):
        if 0.7 * width <= width_of(short := f"…/{'/'.join(parts[i:])}") <= width:
            return short
    while name and width_of(name) >= width:
        name = name[1:]
    return f"…{name}"


def device(run: Overview) -> str:
    """cpu, or the beginning of what NVML calls a GPU."""
    return NONE if run.device is None else run.device[:12]


def fitting(rows: Sequence[Row], width: int | None, live: bool = False) -> tuple[list[str], list[list[str]]]:
    """Headings and cells that fit into a number of characters (None: into any), the name first."""
    columns = [column for column in COLUMNS if live or not column.live]
    cells = {column.heading: [column.cell(row) for row in rows] for column in columns}
    widths = {name: max(map(len, (name, *texts))) for name, texts in cells.items()}
    longest = max([3, *(width_of(row.name) for row in rows)])
    while width is not None and columns and min(longest, NARROWEST_NAME) + _needed(columns, widths) > width:
        columns.remove(min(columns, key=lambda column: column.weight))
    room = longest if width is None else max(1, min(longest, width - _needed(columns, widths)))
    kept = [column.heading for column in columns]
    return ["run", *kept], [
        [shortened(row.name, room), *(cells[name][i] for name in kept)] for i, row in enumerate(rows)
    ]


def _needed(columns: Sequence[Column], widths: dict[str, int]) -> int:
    return sum(widths[column.heading] + GAP for column in columns)
