"""The report as Markdown for a repository's docs, its figures as files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from oelm.reporting.blocks import (
    Block,
    Figures,
    Finding,
    Notes,
    Paragraph,
    Record,
    Records,
    Report,
    Style,
    Table,
    Texts,
)
from oelm.reporting.figures import Gallery, Say

INK = "#24292f"
SHEET = '<rect width="100%" height="100%" fill="#ffffff"/>'  # a picture does not know whether its page is dark


class Markdown:
    """Writes a report; `files` are the figures by their names."""

    def __init__(self, report: Report, gallery: Gallery, say: Say, folder: str) -> None:
        self.files: dict[str, str] = {}
        self._gallery, self._say, self._folder = gallery, say, folder
        self.text = "\n".join(self._report(report)).rstrip() + "\n"

    def _report(self, report: Report) -> Iterator[str]:
        yield from (f"# {self._said(report.title)}", "")
        yield from self._blocks(report.opening)
        for section in report.sections:
            yield from (f"## {self._said(section.title)}", "")
            for part in section.parts:
                if part.title:
                    yield from (f"### {self._said(part.title)}", "")
                yield from self._blocks(part.blocks)

    def _blocks(self, blocks: Sequence[Block]) -> Iterator[str]:
        for block in blocks:
            yield from self._block(block)
            yield ""

    def _block(self, block: Block) -> Iterator[str]:
        match block:
            case Paragraph():
                yield " ".join(map(self._said, block.sentences))
            case Finding():
                verdict = "no verdict" if block.verdict == "–" else block.verdict
                sentences = " ".join(map(self._said, block.sentences))
                yield f"**{self._said(block.title)}: {self._said(verdict)}.** {sentences}"
            case Notes():
                yield from (f"- {self._said(line)}" for line in block.lines)
            case Table():
                yield from self._table(block)
            case Figures():
                yield from self._figures(block)
            case Texts():
                for text in block.texts:
                    yield from (f"**{self._said(text.title)}**", "", *_fenced(text.text), "")
            case Records():
                for record in block.records:
                    yield from self._record(record)

    def _table(self, table: Table) -> Iterator[str]:
        yield self._row(table.headings)
        yield "|" + "---|" * len(table.headings)
        yield from map(self._row, table.rows)
        yield from self._note(table.note)

    def _row(self, cells: Sequence[str]) -> str:
        return "| " + " | ".join(map(self._said, cells)) + " |"

    def _figures(self, block: Figures) -> Iterator[str]:
        if block.legend:
            swatches = [(self._swatch(title, i, style), title) for i, (title, style) in enumerate(block.legend)]
            yield " &nbsp; ".join(f"{image} {self._said(title)}" for image, title in swatches)
            yield ""
        for figure in block.figures:
            title = self._say(figure.title)
            yield self._image(figure.name, title, self._gallery.figure(figure, INK))
        yield from self._note(block.note)

    def _swatch(self, title: str, i: int, style: Style) -> str:
        name = f"legend-{i}-{style.colour.strip('#')}-{style.marker.encode().hex()}"
        return self._image(name, self._say(title), self._gallery.swatch(style, INK))

    def _image(self, name: str, title: str, svg: str) -> str:
        start = svg.index(">") + 1
        opening = svg[:start].replace("<svg ", '<svg font-family="sans-serif" ', 1)
        self.files[f"{name}.svg"] = f"{opening}{SHEET}{svg[start:]}\n"
        return f"![{_plain(title)}]({quote(self._folder)}/{quote(name)}.svg)"

    def _record(self, record: Record) -> Iterator[str]:
        yield from (f"**{self._said(record.title)}**", "")
        yield from (f"- {self._said(name)}: {self._said(value)}" for name, value in record.facts)
        yield ""

    def _note(self, note: str) -> Iterator[str]:
        if note:
            yield from ("", f"*{self._said(note)}*")

    def _said(self, text: str) -> str:
        return _plain(self._say(text))


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", text)


def _fenced(text: str) -> tuple[str, ...]:
    """Text between fences that are longer than any in it."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text", text, fence
