"""`oelm status`: how all the runs stand, at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from oelm import terminal
from oelm.errors import UserError
from oelm.runs import table
from oelm.runs.overview import STATES, Overview, overviews


def existing(places: Sequence[str], default: str) -> list[Path]:
    """The folders that were asked for, which must be there; the default one may be yet to come."""
    for place in places:
        if not Path(place).is_dir():
            raise UserError(f"{place}: no such folder")
    return list(map(Path, places or (default,)))


def show(places: Sequence[Path], as_json: bool = False) -> None:
    runs = overviews(*places)
    if as_json:
        print(json.dumps([run.as_json() for run in runs], indent=2))
    else:
        print_runs(runs, places)


def print_runs(runs: Sequence[Overview], places: Sequence[Path]) -> None:
    if not runs:
        print(f"no runs yet in {', '.join(map(str, places))}")
        return
    console = Console()
    titles = table.names(runs, places)
    rows = [table.Row(run, titles[run.path], table.device(run)) for run in runs]
    terminal.show_table(*table.fitting(rows, console.width if console.is_terminal else None))
    print()
    for run in runs:
        if run.message:
            print(f"{titles[run.path]}: {run.message}")
    print(counts(runs))


def counts(runs: Sequence[Overview]) -> str:
    """50 runs: 2 running, 48 finished"""
    by_state = Counter(run.state for run in runs)
    listed = ", ".join(f"{by_state[state]} {state}" for state in STATES if by_state[state])
    return f"{len(runs)} run{'s' if len(runs) != 1 else ''}: {listed}"
