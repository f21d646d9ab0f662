"""Drawings leave room for what they show."""

from __future__ import annotations

import re
import warnings

from oelm.reporting.blocks import Bars, Figure
from oelm.reporting.figures import LABEL, Gallery

LONG = "matched+lowrank(6.25%)+gain+bias,q+temperature,k+shift (max_lr 0.003)"


def test_long_names_are_broken_and_leave_room_for_the_bars() -> None:
    bars = Bars("seconds", ("Baseline", LONG), {"training": (3.0, 4.0), "validation": (1.0, 2.0)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Matplotlib's word for axes that have no room
        svg = Gallery(str).figure(Figure("bars", "time", bars), "black")
    written = re.findall(r"<(?:text|tspan)[^>]*>([^<]+)<", svg)
    assert max(map(len, written)) <= LABEL
    assert "".join(LONG.split()) in "".join("".join(written).split())
