"""The report as one HTML page that needs nothing else: no network, no script; light and dark, on a phone, on paper."""

from __future__ import annotations

import functools
from importlib.resources import files

from oelm.report import figures
from oelm.report.blocks import Figure, Report, Style
from oelm.report.words import HTML_LANGUAGE, translator

PAPER_INK = "#16191d"


def page(report: Report, language: str, ink: str = "currentColor") -> str:
    """HTML. Everything that comes from a run folder is escaped, and the page's own policy forbids scripts."""
    from jinja2 import Environment, StrictUndefined

    folder, say = files("oelm.report"), translator(language)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    from markupsafe import Markup

    @functools.cache
    def swatch(style: Style) -> Markup:
        return Markup(figures.swatch(style, ink))

    def drawn(figure: Figure) -> Markup:
        return Markup(figures.svg(figure.drawing, say, ink, say(figure.title)))

    return environment.from_string((folder / "page.html.jinja").read_text(encoding="utf-8")).render(
        report=report,
        language=HTML_LANGUAGE[language],
        css=Markup((folder / "page.css").read_text(encoding="utf-8")),
        kind=lambda block: type(block).__name__,
        say=say,
        swatch=swatch,
        drawn=drawn,
    )
