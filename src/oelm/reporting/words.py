"""The languages of a report. Sentences are looked up by their English templates; what is filled in stays as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import yaml

from oelm.wording import Said

LANGUAGES = ("en", "zh")
HTML_LANGUAGE = {"en": "en", "zh": "zh-Hans"}
CHINESE_FONT = "fonts-noto-cjk"
CHINESE_FONTS = ("cjk", "wqy", "wenquanyi", "sourcehan", "simhei", "simsun", "msyh", "pingfang", "heiti", "fallback")


def translator(language: str) -> Callable[[str], str]:
    """What says an English text in a language."""
    return _in_chinese if language == "zh" else str


def _in_chinese(text: str) -> str:
    if isinstance(text, Said):
        template = chinese().get(text.template, text.template)
        return template.format(**{name: _value(value) for name, value in text.values.items()})
    if text in chinese():
        return chinese()[text]
    head, bracket, rest = text.partition(" (")  # a variant's title, and what sets its arm apart
    return f"{chinese().get(head, head)}{bracket}{rest}"


def _value(value: Any) -> Any:
    if isinstance(value, list):
        sentences = any(isinstance(each, Said) for each in value)
        return ("\N{FULLWIDTH SEMICOLON}" if sentences else "、").join(str(_value(each)) for each in value)
    return _in_chinese(value) if isinstance(value, str) else value


def chinese_can_be_drawn() -> bool:
    """Whether a font with Chinese characters is installed."""
    from matplotlib.font_manager import findSystemFonts

    return any(name in path.lower() for path in findSystemFonts() for name in CHINESE_FONTS)


@functools.cache
def chinese() -> dict[str, str]:
    """The Chinese of each English template."""
    words: dict[str, str] = yaml.safe_load((files("oelm.reporting") / "chinese.yaml").read_text(encoding="utf-8"))
    return words
