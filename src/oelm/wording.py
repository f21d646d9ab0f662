"""Numbers and tables as people read them, and sentences that can be said again in another language."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from unicodedata import combining, east_asian_width


class Said(str):
    """A sentence that keeps its template and what fills it: it can be said again in another language.

    A list among the values is said as an enumeration, with semicolons between sentences.
    """

    template: str
    values: Mapping[str, Any]

    def __new__(cls, template: str, **values: Any) -> Said:
        plain = {name: cls._enumerated(value) if isinstance(value, list) else value for name, value in values.items()}
        said = super().__new__(cls, template.format(**plain))
        said.template, said.values = template, values
        return said

    @staticmethod
    def _enumerated(values: list[Any]) -> str:
        sentences = any(isinstance(value, Said) for value in values)
        return ("; " if sentences else ", ").join(map(str, values))


def writable(text: str) -> str:
    """Text with a mark instead of what UTF-8 cannot say: half a sign, or a byte of a file's name that is none."""
    return text.encode("utf-8", "replace").decode()


def formatted(seconds: float) -> str:
    """4h 31m 27s, 2m 05s, 8s."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m {rest:02d}s"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"


def perplexity(loss: float) -> float:
    """exp(loss); a run that diverges may have a loss whose exponential is no number any more."""
    return math.exp(min(loss, 700.0))


def shown(ppl: float, digits: int) -> str:
    """A perplexity to read; that of a run that diverged may have hundreds of digits before the point."""
    return f"{ppl:.{digits}f}" if ppl < 1e6 else f"{ppl:.4g}"


def percent(log_ratio: float) -> str:
    """A difference of losses as the percentage by which perplexities differ: +9.8 %."""
    value = 100 * math.expm1(min(log_ratio, 700.0))
    return f"{value:+.1f} %" if value < 1e6 else f"{value:+.4g} %"


def memory(size: float) -> str:
    """Bytes as 812 MiB or 2.10 GiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def width_of(text: str) -> int:
    """The columns of a terminal that a text takes: two for a Chinese character, none for what stands above another."""
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def padded(text: str, width: int, left: bool = True) -> str:
    """A text and spaces, at whose left or right end it stands."""
    spaces = " " * (width - width_of(text))
    return text + spaces if left else spaces + text


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under headings as plain text."""
    lines = [headings, *rows]
    widths = [max(map(width_of, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(padded(cell, width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
