"""The report as a PDF."""

from __future__ import annotations

import contextlib
import io
import logging
import re

from oelm.errors import UserError

# What a Debian or Ubuntu calls the packages of the libraries that WeasyPrint loads.
PACKAGES = {"pango": "libpango-1.0-0 libpangoft2-1.0-0", "gobject": "libglib2.0-0", "harfbuzz": "libharfbuzz-subset0"}


def pdf(html: str) -> bytes:
    """The page on A4. Nothing is fetched; where a system library is missing, the error names it."""
    logging.getLogger("weasyprint").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            import weasyprint  # prints a page of advice where a library is missing
    except OSError as error:
        raise UserError(f"no PDF: {_missing(str(error))}") from None
    nothing = weasyprint.urls.URLFetcher(allowed_protocols=())  # a report needs nothing from elsewhere
    document: bytes = weasyprint.HTML(string=html, url_fetcher=nothing).write_pdf()
    return document


def _missing(said: str) -> str:
    """Which library it is, and where it comes from."""
    match = re.search(r"library '?(?:lib)?([\w.+-]+)", said)
    name = match[1] if match else said.splitlines()[0]
    package = next((package for part, package in PACKAGES.items() if part in name), "")
    return f"the system library {name} is missing{f' (Debian: apt install {package})' if package else ''}"
