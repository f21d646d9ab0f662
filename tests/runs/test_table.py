"""Runs as rows: what fits is shown whole, the rest not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oelm.runs import table
from oelm.runs.overview import STATES, Overview
from oelm.wording import width_of

PATH = "outputs/GPT-01/oelm_v2/seed-0"
RUN = Overview(
    path=PATH,
    state="running",
    model_type="oelm_v2",
    seed=0,
    step=123_456,
    max_steps=1_000_000,
    loss=3.14159,
    val_step=123_000,
    val_loss=3.2,
    best_loss=3.1,
    gap=0.0123,
    tokens_per_second=1_234_567.0,
    seconds_left=16_287.0,
    device="GPU-12345678-aaaa",
    host="here",
    pid=1,
)
ROW = table.Row(RUN, "GPT-01/oelm_v2/seed-0", "GPU 3", "98 %")


def test_a_score_on_the_test_split_is_called_one() -> None:
    headings, (cells,) = table.fitting([replace(ROW, run=replace(RUN, split="test"))], None)
    assert dict(zip(headings, cells, strict=True))["val PPL"] == "24.53 test"


def test_everything_is_shown_where_there_is_room() -> None:
    headings, (cells,) = table.fitting([ROW], None, live=True)
    assert dict(zip(headings, cells, strict=True)) == {
        "run": "GPT-01/oelm_v2/seed-0",
        "state": "running",
        "progress": "▉         12 %",
        "step": "123,456/1,000,000",
        "loss": "3.1416",
        "val PPL": "24.53",
        "best": "22.20",
        "gap": "+1.2 %",
        "tokens/s": "1,234,567",
        "left": "4h 31m 27s",
        "device": "GPU 3",
        "load": "98 %",
    }


@pytest.mark.parametrize("width", range(20, 170, 3))
def test_what_is_shown_fits_and_no_number_is_cut(width: int) -> None:
    everything, (whole,) = table.fitting([ROW], None, live=True)
    headings, (cells,) = table.fitting([ROW], width, live=True)
    widths = [max(len(heading), len(cell)) for heading, cell in zip(headings, cells, strict=True)]
    assert sum(widths) + table.GAP * (len(widths) - 1) <= width
    assert set(zip(headings[1:], cells[1:], strict=True)) <= set(zip(everything, whole, strict=True))
    assert [name for name in everything if name in headings] == headings


def test_eighty_columns_have_what_matters() -> None:
    headings, (cells,) = table.fitting([ROW], 80, live=True)
    assert {"run", "state", "progress", "loss", "val PPL", "gap", "left"} <= set(headings)
    assert cells[0].endswith("/oelm_v2/seed-0")


@pytest.mark.parametrize(
    ("width", "shown"),
    [(29, PATH), (24, "…/GPT-01/oelm_v2/seed-0"), (16, "…/oelm_v2/seed-0"), (15, "…oelm_v2/seed-0"), (5, "…ed-0")],
)
def test_a_name_loses_its_beginning(width: int, shown: str) -> None:
    assert table.shortened(PATH, width) == shown


def test_names_stand_below_the_one_place_that_was_asked_for() -> None:
    outputs = Path("outputs")
    assert table.names([RUN], [outputs]) == {PATH: "GPT-01/oelm_v2/seed-0"}
    assert table.names([RUN], [outputs, Path("other")]) == {PATH: PATH}
    assert table.names([RUN], [Path(PATH)]) == {PATH: PATH}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999, 1.0, 1.7])
def test_a_bar_has_one_length(share: float) -> None:
    assert len(table.bar(share)) == table.BAR + 6
    assert table.bar(share).startswith("█" * int(min(share, 1) * table.BAR))


@pytest.mark.parametrize("sort", table.SORTS)
def test_runs_of_which_little_is_known_can_be_sorted(sort: str) -> None:
    runs = [Overview(f"outputs/{state}", state) for state in reversed(STATES)]
    ordered = table.sorted_by(sort, [*runs, RUN])
    assert len(ordered) == len(runs) + 1
    if sort not in ("name", "progress"):
        assert ordered.index(RUN) <= 1


def test_names_are_as_wide_as_a_terminal_shows_them() -> None:
    assert [width_of(text) for text in ("seed-0", "词元", "é", "e\u0301")] == [6, 4, 1, 1]
    name = "实验/" + "中文" * 20
    assert table.shortened(name, 20) == "…文" + "中文" * 4
    row = table.Row(replace(RUN, path=name), name, "cpu")
    headings, cells = table.fitting([row], 80)
    columns = zip(headings, *cells, strict=True)
    assert sum(max(map(width_of, column)) + table.GAP for column in columns) - table.GAP <= 80
    assert "gap" in headings


def test_a_name_with_a_line_break_stays_on_its_line() -> None:
    assert table.names([replace(RUN, path="outputs/a\nb")], [Path("outputs")]) == {"outputs/a\nb": "a b"}
