"""meta.json: what a prepared corpus says of itself, and the one place where it is read, checked and written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oelm.data import corpora
from oelm.data.tokenizer import TOKENIZERS
from oelm.errors import UserError, did_you_mean

FORMAT = 1
META_FILE = "meta.json"
SPLITS = ("train", "val", "test")
DTYPES = ("uint16", "uint32")


@dataclass(frozen=True, kw_only=True)
class Meta:
    format: int = FORMAT
    name: str
    dtype: str
    tokenizer: str
    vocab_size: int
    end_of_text: int
    documents: dict[str, int]
    tokens: dict[str, int]
    sha256: dict[str, str]
    source: list[dict[str, Any]] | dict[str, Any]
    settings: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Meta:
        """What the meta.json of a folder says; one that does not say all of it is refused."""
        path = folder / META_FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise _missing(folder) from None
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged ({error}); prepare the corpus again with --overwrite") from None
        if not isinstance(content, dict):
            raise UserError(f"{path} is damaged (no JSON object); prepare the corpus again with --overwrite")
        for name, (holds, wanted) in CONTENT.items():
            if not holds(content.get(name)):
                raise UserError(f"{path}: {name} must be {wanted}; prepare the corpus again with --overwrite")
        return cls(**{name: content[name] for name in CONTENT})

    def write(self, folder: Path) -> None:
        (folder / META_FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _is_source(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(entry, dict) and isinstance(entry.get("file"), str) for entry in value)
    return isinstance(value, dict)


def _per_split(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and set(value) == set(SPLITS) and all(map(holds, value.values()))


_FOR_EACH = f"for each of {', '.join(SPLITS)}"
CONTENT: dict[str, tuple[Callable[[Any], bool], str]] = {
    "format": (lambda value: _is_count(value) and value == FORMAT, f"{FORMAT}, the one this version reads"),
    "name": (lambda value: isinstance(value, str), "a string"),
    "dtype": (lambda value: value in DTYPES, " or ".join(DTYPES)),
    "tokenizer": (lambda value: value in TOKENIZERS, " or ".join(TOKENIZERS)),
    "vocab_size": (lambda value: _is_count(value) and value > 0, "a number of tokens"),
    "end_of_text": (_is_count, "a token"),
    "documents": (_per_split(_is_count), f"a count {_FOR_EACH}"),
    "tokens": (_per_split(_is_count), f"a count {_FOR_EACH}"),
    "sha256": (_per_split(_is_sha256), f"a hash {_FOR_EACH}"),
    "source": (_is_source, "a list of files or an object"),
    "settings": (lambda value: isinstance(value, dict), "an object"),
}


def is_corpus(folder: Path) -> bool:
    """Whether a folder says that it is a prepared corpus; whether it is whole is another matter."""
    return (folder / META_FILE).exists()


def _missing(folder: Path) -> UserError:
    """A folder without a meta.json, and what may have been meant by it."""
    if folder.is_file():
        instead = f"its folder, {folder.parent}" if is_corpus(folder.parent) else "the folder of a prepared corpus"
        return UserError(f"{folder} is a file; give {instead}")
    name = folder.name or "NAME"
    where = "" if folder.parent == Path("data") else f" --data-dir {folder.parent}"
    problem = f"{folder} holds no prepared corpus"
    if name in corpora.NAMES:
        return UserError(f"{problem}; run: oelm prepare {name}{where}")
    beside = folder.parent.iterdir() if folder.parent.is_dir() else ()
    nearest = did_you_mean(name, [*corpora.NAMES, *(path.name for path in beside if is_corpus(path))])
    hint = nearest and f"{nearest}For text of your own, "
    return UserError(f"{problem}; {hint}run: oelm prepare {name} --source FILES{where}")
