"""What `oelm prepare` is asked for, and whether a corpus that is there is that."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oelm.data import corpora
from oelm.data.meta import Meta
from oelm.data.tokenizer import SmallBpe
from oelm.errors import UserError, is_number, is_plain_name, is_whole, known

STORYBOOK_STORIES = 12_000
STORYBOOK_VOCAB = 1024
MOST_VOCAB = 2**16


@dataclass(frozen=True)
class Request:
    """What `oelm prepare` was asked for; kept in meta.json, so that asking again does nothing twice."""

    name: str
    source: tuple[str, ...] = ()
    val_fraction: float = 0.02
    test_fraction: float = 0.02
    max_tokens: int | None = None
    vocab_size: int | None = None
    text_field: str = "text"

    @property
    def small_vocabulary(self) -> int | None:
        """How large a vocabulary is to be learnt from the text; None where GPT-2's is to be used."""
        return self.vocab_size or (STORYBOOK_VOCAB if self.name == "storybook" else None)

    def describe(self) -> dict[str, Any]:
        """The request and the text behind it, as meta.json keeps them."""
        source: Any = {"built_in": self.name, "stories": STORYBOOK_STORIES}
        if self.source:
            files = corpora.find_files(map(Path, self.source))
            source = [_fingerprint(path) for path in files]
        elif self.name in corpora.HUB:
            hub = corpora.HUB[self.name]
            source = {"hub": hub.path, "name": hub.name, "revision": hub.revision, "split": "train"}
        settings = {key: value for key, value in asdict(self).items() if key not in ("name", "source")}
        return {"source": source, "settings": settings}


def _fingerprint(path: Path) -> dict[str, Any]:
    """A source file as meta.json keeps it.

    The hash notices any edit, and nothing else: a file that was touched, or copied to another folder, is the same text.
    To compute it takes a small part of the time that tokenising takes.
    """
    digest = None
    if path.is_file():  # a pipe can be read only once
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"file": str(path), "bytes": path.stat().st_size, "sha256": digest}


def asked_for(
    name: str,
    source: tuple[str, ...],
    val_fraction: float | None,
    test_fraction: float | None,
    max_tokens: int | None,
    vocab_size: int | None,
    text_field: str,
) -> Request:
    """The request that these arguments make; what cannot be meant is refused."""
    if not source:
        known("corpus", name, corpora.NAMES, otherwise="; for your own text: --source PATH")
    elif name in corpora.NAMES:
        raise UserError(
            f"{name} is a corpus of its own; choose another name for the text of --source, or drop --source"
        )
    if not is_plain_name(name):
        raise UserError(f"corpus name {name!r} must be a plain folder name")
    defaults = corpora.HUB.get(name, Request(name))
    val = _number("--val-fraction", defaults.val_fraction if val_fraction is None else val_fraction)
    test = _number("--test-fraction", defaults.test_fraction if test_fraction is None else test_fraction)
    if not 0 < val < 1:
        raise UserError(f"--val-fraction {val:g} must lie between 0 and 1: without validation no run can be judged")
    if not 0 <= test < 1:
        raise UserError(f"--test-fraction {test:g} must lie between 0 and 1")
    if val + test >= 1:
        raise UserError(f"--val-fraction {val:g} and --test-fraction {test:g} must leave something to train on")
    most = _whole_number("--max-tokens", max_tokens, 1)
    vocab = _whole_number("--vocab-size", vocab_size, SmallBpe.fewest, MOST_VOCAB)
    return Request(name, source, val, test, most, vocab, text_field)


def difference(meta: Meta, request: Request) -> str:
    """How a corpus was prepared otherwise than is asked for; nothing where it was not."""
    wanted = request.describe()
    if _given(meta.settings) != _given(wanted["settings"]):
        return "with other settings"
    if _text(meta.source) != _text(wanted["source"]):
        return "from other text"
    if isinstance(meta.source, list) and any(entry.get("sha256") is None for entry in meta.source):
        return "from a pipe, whose text cannot be compared"
    return ""


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for but for what is None, so that a setting which is new makes no corpus of before another one."""
    return {name: value for name, value in settings.items() if value is not None}


def _text(source: Any) -> Any:
    """What of a source decides the text. Where a file lies does not; its name does, which says how it is read."""
    if isinstance(source, list):
        return [(Path(entry["file"]).name, entry.get("sha256")) for entry in source]
    return source


def _number(flag: str, value: Any) -> float:
    """A number as such; what comes from Python may be anything."""
    if not is_number(value):
        raise UserError(f"{flag} {value!r} must be a number")
    return float(value)


def _whole_number(flag: str, value: Any, least: int, most: int | None = None) -> int | None:
    if value is None:
        return None
    if not is_whole(value) or value < least or (most is not None and value > most):
        bounds = f"at least {least:,}" if most is None else f"from {least:,} to {most:,}"
        raise UserError(f"{flag} {value!r} must be a whole number, {bounds}")
    return int(value)
