"""Where the time went: the wall clock in parts, and the time of every step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from oelm.runfolder import PARTS
from oelm.wording import formatted


class Clock:
    """Adds up the seconds spent on each part, over all the sessions of a run."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.validations = 0
        self.step_times: list[float] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = self._now()
        try:
            yield
        finally:
            self.seconds[name] += self._now() - started

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def state(self) -> dict[str, Any]:
        return {"seconds": dict(self.seconds), "validations": self.validations}

    def restore(self, state: dict[str, Any], step_times: Tensor) -> None:
        """Adds an earlier session's times to this one's."""
        for name in PARTS:
            self.seconds[name] += state["seconds"][name]
        self.validations += state["validations"]
        self.step_times[:0] = step_times.tolist()

    def stats(self) -> dict[str, Any]:
        """timing_stats.json: the original study's keys, with the parts of the wall time beside them."""
        times = self.step_times or [0.0]
        hundredths = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
        return {
            "total_wall_time": self.total,
            "total_formatted": formatted(self.total),
            "num_steps_measured": len(self.step_times),
            "mean_step_time": statistics.fmean(times),
            "std_step_time": statistics.pstdev(times),
            "median_step_time": statistics.median(times),
            "min_step_time": min(times),
            "max_step_time": max(times),
            "p95_step_time": hundredths[94],
            "p99_step_time": hundredths[98],
            "total_validation_time": self.seconds["validation"],
            "mean_validation_time": self.seconds["validation"] / max(self.validations, 1),
            "num_validations": self.validations,
            "seconds_by_part": self.seconds,
        }


class StepTimer:
    """The time of each step, on the device: from the end of one to the end of the next.

    On a GPU the marks are CUDA events, read only when the host waits for the device anyway.
    """

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        self._cuda = device.type == "cuda"
        self._now = now
        self._last: Any = None
        self._spans: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        """Called before each step; after a pause, this is where the next step's time starts."""
        if self._last is None:
            self._last = self._mark()

    def end(self) -> None:
        mark = self._mark()
        self._spans.append((self._last, mark))
        self._last = mark

    def pause(self) -> None:
        self._last = None

    def collect(self) -> list[float]:
        """Seconds of each step since the last call. Waits for the device."""
        spans, self._spans = self._spans, []
        if self._cuda and spans:
            spans[-1][1].synchronize()
            return [start.elapsed_time(end) / 1000 for start, end in spans]
        return [end - start for start, end in spans]

    def _mark(self) -> Any:
        if not self._cuda:
            return self._now()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
