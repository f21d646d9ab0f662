"""What a report is made of, however it is written: parts that hold tables, figures and sentences, and no markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Paragraph:
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """What is said of one variant."""

    title: str
    verdict: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Notes:
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


@dataclass(frozen=True)
class Style:
    """How an arm is drawn in every figure: no two differ in colour alone."""

    colour: str
    dash: str
    marker: str


@dataclass(frozen=True)
class Curve:
    """A line, with the band over the seeds where there are several."""

    style: Style
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None


@dataclass(frozen=True)
class Curves:
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log: bool = False
    counted: bool = False  # whether x counts things, such as layers


@dataclass(frozen=True)
class Point:
    style: Style
    x: float
    y: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Points:
    """A cloud, with the line of those points to which no other is superior in both: lower is better in both."""

    x_label: str
    y_label: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Bars:
    """A bar per arm, of parts."""

    x_label: str
    arms: tuple[str, ...]
    parts: dict[str, tuple[float, ...]]


Drawing = Curves | Points | Bars


@dataclass(frozen=True)
class Figure:
    name: str  # of its file
    title: str
    drawing: Drawing


@dataclass(frozen=True)
class Figures:
    figures: tuple[Figure, ...]
    legend: tuple[tuple[str, Style], ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Text:
    title: str
    text: str


@dataclass(frozen=True)
class Texts:
    """Texts side by side."""

    texts: tuple[Text, ...]


@dataclass(frozen=True)
class Record:
    """Facts under a title."""

    title: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Records:
    records: tuple[Record, ...]


Block = Paragraph | Finding | Notes | Table | Figures | Texts | Records


@dataclass(frozen=True)
class Part:
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Section:
    title: str
    name: str  # what a link to it says
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Report:
    title: str
    opening: tuple[Block, ...]
    sections: tuple[Section, ...]
