"""What a run tells whoever watches it. The plain observer prints lines; a terminal may show a live one instead."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from oelm.output import UntilGone
from oelm.wording import formatted, perplexity, shown


@dataclass(frozen=True)
class Progress:
    step: int
    max_steps: int
    loss: float
    val_loss: float | None
    best_loss: float | None
    tokens_per_second: float
    seconds_left: float

    def line(self) -> str:
        return "  ".join((self.how_far(), self.how_well(), self.time_left()))

    def how_far(self) -> str:
        return f"step {self.step:,}/{self.max_steps:,}"

    def how_well(self) -> str:
        parts = (f"loss {self.loss:.4f}", self.validation(), f"{self.tokens_per_second:,.0f} tokens/s")
        return "  ".join(part for part in parts if part)

    def time_left(self) -> str:
        return f"{formatted(self.seconds_left)} left"

    def validation(self) -> str:
        if self.val_loss is None or self.best_loss is None:
            return ""
        return f"val PPL {shown(perplexity(self.val_loss), 2)} (best {shown(perplexity(self.best_loss), 2)})"


class Observer:
    """Hears everything and says nothing."""

    def announce(self, facts: dict[str, str]) -> None:
        """What is about to run."""

    def progress(self, progress: Progress) -> None:
        """How far it is."""

    def note(self, line: str) -> None:
        """Something worth saying once."""

    def close(self) -> None:
        """It is over, well or badly."""


class Lines(Observer):
    """Plain lines, at most one every few seconds, for a log or a pipe."""

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds = seconds
        self._next = 0.0
        self._out = UntilGone(sys.stdout)

    def announce(self, facts: dict[str, str]) -> None:
        width = max(map(len, facts))
        for name, value in facts.items():
            self.note(f"{name:<{width}}  {value}")

    def progress(self, progress: Progress) -> None:
        if time.monotonic() >= self._next or progress.step == progress.max_steps:
            self.note(progress.line())
            self._next = time.monotonic() + self._seconds

    def note(self, line: str) -> None:
        print(line, file=self._out, flush=True)
