"""`oelm report`: runs in, a page, a PDF and Markdown out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oelm.analysis.compare import ORIGINAL, Measure
from oelm.errors import UserError, known
from oelm.reporting.content import content
from oelm.reporting.figures import Gallery
from oelm.reporting.markdown import Markdown
from oelm.reporting.page import PAPER_INK, page
from oelm.reporting.paper import pdf
from oelm.reporting.words import CHINESE_FONT, LANGUAGES, chinese_can_be_drawn, translator
from oelm.runfolder import RunFolder, write_whole
from oelm.wording import writable

KINDS = (".html", ".pdf", ".md")
READ = ("config.yaml", "manifest.json", "evals.jsonl", "timing_stats.json", "status.json")  # of a finished run


@dataclass(frozen=True)
class Written:
    """The files that were made, and what could not be as it should."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self.paths))


def report(
    folders: Sequence[RunFolder], out: str | Path | None = None, measure: Measure = ORIGINAL, lang: str = "en"
) -> Written:
    """Writes report.html, report.pdf and report.md into a folder; or, where `out` names one of the three, that one."""
    known("language", lang, LANGUAGES)
    target = Path(out) if out is not None else common_folder(folders) / "report"
    base, kinds = (target.with_suffix(""), (target.suffix,)) if target.suffix in KINDS else (target / "report", KINDS)
    said, gallery = content(folders, measure), Gallery(translator(lang))
    notes, paths = [], []
    if lang == "zh" and not chinese_can_be_drawn():
        notes.append(f"no font with Chinese characters here; install one (Debian: apt install {CHINESE_FONT})")
    _make_folder(base.parent)
    if ".html" in kinds:
        paths.append(_written(base.with_suffix(".html"), page(said, gallery, lang)))
    if ".pdf" in kinds:
        try:
            paths.append(_written(base.with_suffix(".pdf"), pdf(page(said, gallery, lang, PAPER_INK))))
        except UserError as error:
            notes.append(str(error))
    if ".md" in kinds:
        paths.append(_write_markdown(base, Markdown(said, gallery, translator(lang), f"{base.name}-figures")))
    return Written(tuple(paths), tuple(notes))


def common_folder(folders: Sequence[RunFolder]) -> Path:
    """The innermost folder with all the runs below it."""
    return Path(os.path.commonpath([folder.path.parent for folder in folders]))


def _write_markdown(base: Path, markdown: Markdown) -> Path:
    figures = base.with_name(f"{base.name}-figures")
    shutil.rmtree(figures, ignore_errors=True)  # of a report on other runs
    _make_folder(figures)
    for name, svg in markdown.files.items():
        _written(figures / name, writable(svg))
    return _written(base.with_suffix(".md"), writable(markdown.text))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"--out {folder}: there is a file of that name") from None
    except PermissionError:
        raise UserError(f"--out {folder} cannot be written: permission denied") from None


def _written(path: Path, content: str | bytes) -> Path:
    write_whole(path, content)
    return path


def up_to_date(paths: Sequence[Path], folders: Sequence[RunFolder]) -> bool:
    """Whether files are there, and younger than what they were made of."""
    if not all(path.exists() for path in paths):
        return False
    files = [run.path / name for run in folders for name in READ]
    newest = max(file.stat().st_mtime for file in files if file.exists())
    return min(path.stat().st_mtime for path in paths) >= newest
