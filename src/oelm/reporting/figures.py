"""Drawings as SVG: text stays text, and the ink is whatever the place asks for, such as the colour of its text."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oelm.reporting.blocks import Bars, Curve, Curves, Drawing, Figure, Points, Style
from oelm.reporting.styles import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Say = Callable[[str], str]  # into the language of the report

SENTINEL = "#010203"  # drawn with, and replaced by the ink in the end: nothing else has this colour
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text as text: small, searchable, in the fonts of the reader
    "svg.hashsalt": "oelm",  # the same drawing gives the same bytes
    "text.parse_math": False,  # a $ is a $
    "font.size": 9,
    "axes.formatter.useoffset": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), SENTINEL),
}
WIDTH = 4.3  # inches
LABEL = 24  # characters in a line, beside a bar
BEGINNING, TOO_STEEP = 0.05, 1.5
SWATCH = (0.42, 0.14)
PARTS = ("#8a8f98", "#b0706a", "#6a8caf", "#b5a15b", "#8f6f9c", "#6fa287")  # none is an arm's


class Gallery:
    """The figures of a report, each drawn once, whatever the number of places that ask for it."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._drawn: dict[object, str] = {}

    def figure(self, figure: Figure, ink: str) -> str:
        """A figure as an <svg> element."""
        if figure.name not in self._drawn:
            self._drawn[figure.name] = _embedded(_svg(figure.drawing, self._say), self._say(figure.title))
        return self._drawn[figure.name].replace(SENTINEL, ink)

    def swatch(self, style: Style, ink: str) -> str:
        """The line and marker of an arm, for a legend."""
        if style not in self._drawn:
            self._drawn[style] = _embedded(_swatch(style), "")
        return self._drawn[style].replace(SENTINEL, ink)


def _svg(drawing: Drawing, say: Say) -> str:
    with _sheet((WIDTH, _height(drawing, say))) as (axes, finished):
        if isinstance(drawing, Curves):
            _curves(axes, drawing, say)
        elif isinstance(drawing, Points):
            _points(axes, drawing, say)
        else:
            _bars(axes, drawing, say)
        return finished()


def _height(drawing: Drawing, say: Say) -> float:
    if not isinstance(drawing, Bars):
        return 3.0
    lines = max((_in_lines(say(arm)).count("\n") for arm in drawing.arms), default=0)
    return 1.1 + (0.3 + 0.14 * lines) * len(drawing.arms)


def _swatch(style: Style) -> str:
    with _sheet(SWATCH) as (axes, finished):
        axes.plot([0, 1, 2], [0, 0, 0], **_look(style), marker=style.marker, markevery=[1])
        axes.set_axis_off()
        return finished()


@contextmanager
def _sheet(size: tuple[float, float]) -> Iterator[tuple[Axes, Callable[[], str]]]:
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**dict(matplotlib.rcParamsDefault), **SETTINGS}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's fonts will have it
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)

        def finished() -> str:
            file = io.StringIO()
            figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            return file.getvalue()

        yield figure.add_subplot(), finished


def _embedded(text: str, label: str) -> str:
    """Matplotlib's file as an element of a page: without prologue, names of groups, fonts, and a style for all."""
    from html import escape

    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub(r" font-family: [^;\"]*;?", "", text)
    text = re.sub(r"font: (\d+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r"\s*\n\s*", " ", text)
    role = f'role="img" aria-label="{escape(label)}"' if label else 'aria-hidden="true"'
    return text.replace("<svg ", f'<svg {role} style="stroke-linejoin: round" ', 1)


def _look(style: Style) -> dict[str, Any]:
    return {"color": SENTINEL if style.colour == INK else style.colour, "linestyle": style.dash}


def _curves(axes: Axes, drawing: Curves, say: Say) -> None:
    for curve in drawing.curves:
        y = [_drawable(value) for value in curve.y]
        every = max(1, len(y) // 8)
        axes.plot(curve.x, y, **_look(curve.style), marker=curve.style.marker, markevery=every)
        if curve.band is not None:
            low, high = ([_drawable(value) for value in side] for side in curve.band)
            axes.fill_between(curve.x, low, high, color=_look(curve.style)["color"], alpha=0.18, linewidth=0)
    _labelled(axes, say(drawing.x_label), say(drawing.y_label))
    if drawing.counted:
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if drawing.log:
        _in_ratios(axes, drawing.curves)


def _drawable(value: float) -> float:
    """A number that can be drawn: the perplexity of a run that diverged may be too large for any axis."""
    return value if math.isfinite(value) and value < 1e9 else math.nan


def _in_ratios(axes: Axes, curves: Sequence[Curve]) -> None:
    """A logarithmic axis with numbers that people read, also where it spans less than a decade.

    It has its top where the highest curve is after a twentieth of its way, so that the end can be told apart.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    end = max(x for curve in curves for x in curve.x)
    points = [(x, y) for curve in curves for x, y in zip(curve.x, curve.y, strict=True) if 0 < y < 1e9]
    late = [y for x, y in points if x >= BEGINNING * end]
    if not late:
        return
    axes.set_yscale("log")
    if max(y for _, y in points) > TOO_STEEP * max(late):
        axes.set_ylim(min(late) / 1.03, max(late) * 1.1)
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(MaxNLocator(6) if high < 4 * low else LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _points(axes: Axes, drawing: Points, say: Say) -> None:
    front = sorted((p.x, p.y) for p in drawing.points if not any(_beats(q.x, q.y, p.x, p.y) for q in drawing.points))
    if len(front) > 1:
        axes.plot(*zip(*front, strict=True), color=SENTINEL, linestyle=":", linewidth=1, alpha=0.6)
    for point in drawing.points:
        y = _drawable(point.y)
        colour = _look(point.style)["color"]
        if point.interval is not None:
            low, high = map(_drawable, point.interval)
            axes.vlines(point.x, low, high, color=colour, linewidth=1.2)
        axes.plot([point.x], [y], color=colour, marker=point.style.marker, markersize=7, linestyle="none")
    axes.margins(0.12)
    _labelled(axes, say(drawing.x_label), say(drawing.y_label))


def _beats(x: float, y: float, other_x: float, other_y: float) -> bool:
    return x <= other_x and y <= other_y and (x < other_x or y < other_y)


def _bars(axes: Axes, drawing: Bars, say: Say) -> None:
    left = [0.0] * len(drawing.arms)
    for i, (part, values) in enumerate(drawing.parts.items()):
        colour = PARTS[i % len(PARTS)]
        axes.barh(range(len(left)), values, left=left, height=0.62, color=colour, label=say(part))
        left = [before + value for before, value in zip(left, values, strict=True)]
    axes.set_yticks(range(len(left)), [_in_lines(say(arm)) for arm in drawing.arms])
    axes.invert_yaxis()
    _labelled(axes, say(drawing.x_label), "")
    axes.figure.legend(loc="outside upper center", ncols=3, frameon=False, handlelength=1.4)


def _in_lines(label: str) -> str:
    """The name of an arm, broken between the parts of a variant where it would leave no room for its bar."""
    lines = [""]
    for piece in re.split(r"(?=[+ ])|(?<=,)", label):
        if lines[-1] and len(lines[-1] + piece) > LABEL:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.strip() for line in lines)


def _labelled(axes: Axes, x: str, y: str) -> None:
    axes.set(xlabel=x, ylabel=y)
    axes.grid(color=SENTINEL, alpha=0.15, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(lambda value, _: _compact(value))


def _compact(value: float) -> str:
    """12k, 1.5M: numbers on an axis are read at a glance."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and letter != "k"):
            return f"{value / size:g}{letter}"
    return f"{value:g}"
