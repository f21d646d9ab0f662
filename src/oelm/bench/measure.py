"""How times are taken: interleaved rounds, the device's own peak rates, launches and memory."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from oelm.bench.contenders import Contender
from oelm.errors import UserError


@dataclass(frozen=True)
class Times:
    """Milliseconds per step, one value per round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


def pairs(rounds: Sequence[float]) -> list[float]:
    """The means of a round forwards and the round backwards after it: in one of them a contender runs early, in the
    other late, and whoever ran just before it was another."""
    return [statistics.fmean(both) for both in zip(rounds[::2], rounds[1::2], strict=False)]


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds from an idle device to an idle device."""
    _wait(device)
    started = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - started


def interleaved(
    contenders: Sequence[Contender], device: torch.device, rounds: int, seconds: float, on_round: Callable[[], None]
) -> list[Times]:
    """Each contender's times, taken in turns: forwards in one round, backwards in the next (A/B/B/A).

    A round runs each for about `seconds`, after a few steps that are not counted.
    """
    if rounds % 2:
        raise UserError(f"{rounds} rounds are as many forwards and backwards only where the number is even")
    steps = []
    for contender in contenders:
        contender.run(3)
        steps.append(max(3, round(seconds * 3 / timed(lambda c=contender: c.run(3), device))))  # type: ignore[misc]
    taken: list[list[float]] = [[] for _ in contenders]
    gc.collect()
    gc.freeze()  # or a search for garbage in what all of them hold would count as the step of whoever runs then
    try:
        for number in range(rounds):
            order = range(len(contenders)) if number % 2 == 0 else reversed(range(len(contenders)))
            for i in order:
                contenders[i].run(2)
                spent = timed(lambda i=i: contenders[i].run(steps[i]), device)  # type: ignore[misc]
                taken[i].append(1000 * spent / steps[i])
            on_round()
    finally:
        gc.unfreeze()
    return [Times(tuple(times)) for times in taken]


def matmul_rate(device: torch.device) -> float:
    """FLOP/s of the best matrix product that this device does: bf16 on a GPU, fp32 on a CPU."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / _best(lambda: a @ b, device)


def copy_rate(device: torch.device) -> float:
    """Bytes per second that this device's memory reads and writes."""
    source = torch.empty(2**28 if device.type == "cuda" else 2**24, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(lambda: target.copy_(source), device)


def launches(contender: Contender) -> float:
    """Kernels per step on the GPU, copies and fills among them."""
    steps = 4
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        contender.run(steps)
        torch.cuda.synchronize()
    return ran_on_gpu(profile.events() or ()) / steps


def ran_on_gpu(events: Iterable[Any]) -> int:
    """How many events of a profile ran on the GPU; the host's calls that began them are among the events, too."""
    return sum(event.device_type.name == "CUDA" for event in events)


def _best(work: Callable[[], object], device: torch.device) -> float:
    def ten() -> None:
        for _ in range(10):
            work()

    ten()
    return min(timed(ten, device) for _ in range(5)) / 10


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
