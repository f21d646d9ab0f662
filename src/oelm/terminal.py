"""What a person sees in a terminal: live bars and tables by rich; plain lines where there is no terminal.

Names and paths reach rich as Text: in a plain string it would take [brackets] and :colons: for its own markup.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, cast

from rich.console import Console, Group
from rich.live import Live as Display
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from oelm.output import UntilGone
from oelm.training.observe import Lines, Observer, Progress
from oelm.wording import aligned

if TYPE_CHECKING:  # a table of runs is to be there at once, without PyTorch
    from oelm.analysis.compare import Comparison
    from oelm.data.prepare import Tally
    from oelm.training.audit import Finding

PLAIN_SECONDS = 10.0  # between two plain lines of `prepare`


def observer() -> Observer:
    """A live display on a terminal, lines elsewhere."""
    return Live() if Console().is_terminal else Lines()


class Live(Observer):
    """A table of what will run, then two lines that stay in place: how far it is, and how well it does."""

    def __init__(self) -> None:
        self._console = Console(file=cast(TextIO, UntilGone(sys.stdout)))
        self._display: Display | None = None

    def announce(self, facts: dict[str, str]) -> None:
        grid = Table.grid(padding=(0, 2))
        for name, value in facts.items():
            grid.add_row(Text(name, style="dim"), Text(value))
        self._console.print(grid)

    def progress(self, progress: Progress) -> None:
        if self._display is None:
            self._display = Display(console=self._console)
            self._display.start()
        bar = ProgressBar(total=progress.max_steps, completed=progress.step, width=None)
        grid = Table.grid(padding=(0, 1), expand=True)
        for ratio in (None, 1, None):
            grid.add_column(ratio=ratio, no_wrap=True)
        grid.add_row(Text(progress.how_far()), bar, Text(progress.time_left()))
        self._display.update(Group(grid, Text(progress.how_well())), refresh=True)

    def note(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        if self._display is not None:
            self._display.stop()
            self._display = None


@contextmanager
def preparing(name: str) -> Iterator[Callable[[Tally], None]]:
    """Shows how a preparation gets on; yields what it is to call after each chunk."""
    console = Console()
    if not console.is_terminal:
        due = time.monotonic() + PLAIN_SECONDS

        def print_line(tally: Tally) -> None:
            nonlocal due
            if time.monotonic() >= due:
                print(f"{name}: {_prepared(tally)}", flush=True)
                due = time.monotonic() + PLAIN_SECONDS

        yield print_line
        return
    bar = ProgressBar(total=1.0, completed=0, pulse=True)
    with Display(Group(Text(f"{name}: opening the corpus"), bar), console=console, transient=True) as display:

        def show_bar(tally: Tally) -> None:
            bar.pulse = tally.share is None
            bar.update(tally.share or 0.0)
            display.update(Group(Text(f"{name}: {_prepared(tally)}"), bar))

        yield show_bar


def _prepared(tally: Tally) -> str:
    share = "" if tally.share is None else f"{tally.share:.0%}, "
    return f"{share}{tally.documents:,} documents, {tally.tokens:,} tokens, {tally.tokens_per_second:,.0f} tokens/s"


def show(*comparisons: Comparison) -> None:
    """Comparisons as tables, with their notes below."""
    console = Console()
    if not console.is_terminal:
        print("\n\n".join(map(str, comparisons)))
        return
    for i, comparison in enumerate(comparisons):
        console.print(Text("\n" * bool(i) + comparison.task, style="bold"))
        for headings, cells in (comparison.quality, comparison.cost):
            print()
            show_table(headings, cells)
        print()
        for note in comparison.notes:
            console.print(Text(note, style="dim"))
    sys.stdout.flush()


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under headings; on a terminal the first column to the left, the others to the right."""
    console = Console()
    columns = list(zip(headings, *rows, strict=True))
    narrowest = sum(max((len(word) for cell in column for word in cell.split()), default=0) + 1 for column in columns)
    if not console.is_terminal or console.width < narrowest:  # where rich would cut names and numbers short
        print(aligned(headings, rows))
        return
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    for i, column in enumerate(columns):
        breaks = any(" " in cell for cell in column)
        table.add_column(Text(column[0]), justify="right" if i else "left", overflow="fold", no_wrap=not breaks)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def side_by_side(names: list[str], texts: list[str]) -> None:
    """Texts in columns on a terminal, one after the other elsewhere."""
    from oelm.sampling import one_after_the_other

    console = Console()
    if len(texts) == 1 or not console.is_terminal:
        print(one_after_the_other(names, texts))
    else:
        table = Table(box=None, padding=(0, 2), header_style="bold")
        for name in names:
            table.add_column(Text(name))
        table.add_row(*map(Text, texts))
        console.print(table)


def show_audit(run: str, findings: list[Finding], frozen: int) -> bool:
    """Prints what the audit of a run found, and returns whether all that should be frozen is."""
    changed = [finding for finding in findings if not finding.intact]
    matrices = {finding.matrix for finding in findings}
    places = list(dict.fromkeys(finding.place for finding in findings))
    if changed:
        listed = "; ".join(f"{finding.matrix} in {finding.place}" for finding in changed)
        print(f"{run}: NOT frozen: {listed}")
    elif matrices:
        print(f"{run}: {len(matrices)} frozen matrices, bit-identical to when they were frozen in {', '.join(places)}")
    elif frozen:
        print(f"{run}: {frozen} frozen matrices, but no checkpoint yet to compare them with")
    else:
        print(f"{run}: nothing is frozen in this run")
    return not changed
