"""A YAML file written by people, whose mistakes are named by line and field."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from oelm.config import LOADER
from oelm.errors import UserError, did_you_mean, is_number, is_whole

Place = str | int
MISSING: Any = object()


@dataclass(frozen=True)
class Document:
    """A mapping, and the line of each of its fields and of their parts."""

    path: Path
    content: dict[str, Any]
    lines: dict[tuple[Place, ...], int]

    @classmethod
    def read(cls, path: Path) -> Document:
        try:
            text = path.read_text(encoding="utf-8")
            node, content = yaml.compose(text, LOADER), yaml.load(text, LOADER)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file") from None
        except yaml.MarkedYAMLError as error:
            line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
            raise UserError(f"{path}{line}: {error.problem or 'this is no YAML'}") from None
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(content, dict):
            raise UserError(f"{path} must hold 'field: value' lines")
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                line = key.start_mark.line + 1
                raise UserError(f"{path}, line {line}: {key.value} is not the name of a field; put words there")
        document = cls(path, content, {})
        try:
            document._number(node, ())
        except RecursionError:
            raise UserError(f"{path}: an alias (*) stands within its own anchor (&)") from None
        return document

    def _number(self, node: Any, place: tuple[Place, ...]) -> None:
        """Notes the lines of a node and of all below it."""
        self.lines[place] = node.start_mark.line + 1
        if isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                self._number(item, (*place, i))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = (*place, str(key.value))
                if inner in self.lines:
                    raise UserError(f"{self.path}, line {key.start_mark.line + 1}: {key.value} stands there twice")
                self._number(value, inner)
                self.lines[inner] = key.start_mark.line + 1

    def error(self, field: str, message: str, *parts: Place) -> UserError:
        """A mistake in a field, or in a part of it."""
        line = self.lines.get((field, *parts)) or self.lines.get((field,))
        where = f", line {line}" if line else ""
        return UserError(f"{self.path}{where}, {field}: {message}")

    def blame(self, message: str, lines: Mapping[str, tuple[str, Place]]) -> UserError:
        """A mistake that was found elsewhere, in whichever of the fields the message names first."""
        named = [name for name in re.findall(r"\w+", message) if name in lines]
        kind = "model_type" if message.startswith(("unknown variant", "variant ")) else next(iter(named), None)
        field, part = lines[kind] if kind else ("settings", "")
        return self.error(field, message, part)

    def only(self, fields: Sequence[str]) -> None:
        for name in self.content:
            if name not in fields:
                there = f"{did_you_mean(name, fields)}There are: {', '.join(fields)}"
                raise self.error(name, f"there is no such field; {there}")

    def text(self, field: str, default: str) -> str:
        value = self.content.get(field, default)
        if not isinstance(value, str) or not value:
            raise self.error(field, f"must be a word, not {value!r}")
        return value

    def mapping(self, field: str) -> dict[str, Any]:
        value = self.content.get(field, {})
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise self.error(field, f"must hold 'name: value' lines, not {value!r}")
        return value

    def texts(self, field: str, default: Sequence[str] = MISSING) -> list[str]:
        values = self._several(field, default)
        for i, value in enumerate(values):
            if not isinstance(value, str):
                raise self.error(field, f"{value!r} is not a name", i)
        return values

    def numbers(self, field: str, default: Sequence[float]) -> list[float]:
        """Numbers, also where YAML takes them for words: it wants a point in 1.0e-3."""
        values = self._several(field, default)
        for i, value in enumerate(values):
            try:
                values[i] = float(value) if is_number(value) or isinstance(value, str) else float("nan")
            except ValueError:
                values[i] = float("nan")
            if not values[i] > 0:
                raise self.error(field, f"{value!r} is not a number above 0", i)
        if len(set(values)) < len(values):
            raise self.error(field, "the same number stands there twice")
        return values

    def seeds(self, field: str, default: int) -> tuple[int, ...]:
        """So many seeds, or a list of them."""
        value = self.content.get(field, default)
        if is_whole(value) and 1 <= value <= 10_000:
            return tuple(range(value))
        listed = isinstance(value, list) and value and all(is_whole(each) and 0 <= each < 2**63 for each in value)
        if not listed or len(set(value)) < len(value):
            raise self.error(field, f"must be a number of seeds, or a list of different ones, not {value!r}")
        return tuple(value)

    def _several(self, field: str, default: Sequence[Any]) -> list[Any]:
        value = self.content.get(field, default)
        if value is MISSING:
            raise UserError(f"{self.path}, {field}: is missing")
        several = list(value) if isinstance(value, list | tuple) else [value]
        if not several:
            raise self.error(field, "is empty")
        if len({repr(each) for each in several}) < len(several):
            raise self.error(field, "something stands there twice")
        return several
