"""The report as one HTML page that needs nothing else: no network, no script; light and dark, on a phone, on paper."""

from __future__ import annotations

from importlib.resources import files

from oelm.reporting.blocks import Report
from oelm.reporting.figures import Gallery
from oelm.reporting.words import HTML_LANGUAGE, translator
from oelm.wording import writable

PAPER_INK = "#16191d"


def page(report: Report, gallery: Gallery, language: str, ink: str = "currentColor") -> str:
    """HTML. Everything that comes from a run folder is escaped, and the page's own policy forbids scripts."""
    from jinja2 import Environment, StrictUndefined

    folder, say = files("oelm.reporting"), translator(language)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    from markupsafe import Markup

    html = environment.from_string((folder / "page.html.jinja").read_text(encoding="utf-8")).render(
        report=report,
        language=HTML_LANGUAGE[language],
        css=Markup((folder / "page.css").read_text(encoding="utf-8")),
        kind=lambda block: type(block).__name__,
        say=say,
        space="" if language == "zh" else " ",
        swatch=lambda style: Markup(gallery.swatch(style, ink)),
        drawn=lambda figure: Markup(gallery.figure(figure, ink)),
    )
    return writable(html)
