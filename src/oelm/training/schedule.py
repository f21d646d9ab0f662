"""What changes in the course of a run, as pure functions of the step: the learning rate, and what of Q and K trains."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from oelm.config import RunConfig
from oelm.model.querykey import place_of, ruled


def learning_rate(config: RunConfig, step: int) -> float:
    """The rate of update number `step`, counted from 0: linear warm-up, then a cosine down to min_lr.

    The config must be resolved: warm-up and floor as numbers.
    """
    assert config.warmup_steps is not None
    assert config.min_lr is not None
    if step < config.warmup_steps:
        return config.max_lr * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.max_steps - config.warmup_steps)
    return config.min_lr + 0.5 * (config.max_lr - config.min_lr) * (1 + math.cos(math.pi * done))


def rate_factors(config: RunConfig, names: Iterable[str]) -> dict[str, float]:
    """The multiple of the run's learning rate at which each tensor trains: its part's, times its layer's."""
    sides, last = config.variant.sides, max(1, config.num_layers - 1)
    factors = {}
    for name in names:
        block, place = re.match(r"blocks\.(\d+)\.", name), place_of(name)
        of_layer = config.layer_lr ** (int(block[1]) / last) if block else 1.0
        factors[name] = of_layer * (sides[place.side].rate_of(place.tensor) if place else 1.0)
    return factors


def frozen_matrices(config: RunConfig, step: int) -> set[str]:
    """The matrices of Q and K that do not belong to what is optimised in update number `step`."""
    return {name for name, when in ruled(config).items() if not when.trains(step, config.max_steps)}


def changes(config: RunConfig) -> set[int]:
    """The updates before which something of Q or K is frozen or thawed."""
    steps = (when.change(config.max_steps) for when in ruled(config).values())
    return {step for step in steps if step is not None}


class Rests:
    """Which matrices are left out in an update, although they are optimised; quick to ask in every step."""

    def __init__(self, config: RunConfig) -> None:
        self._every = {name: when for name, when in ruled(config).items() if when.kind == "every"}
        self._intervals = sorted({round(when.number) for when in self._every.values()})
        self._known: dict[tuple[bool, ...], frozenset[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._every)

    def at(self, step: int) -> frozenset[str]:
        kind = tuple(step % interval == 0 for interval in self._intervals)
        if kind not in self._known:
            self._known[kind] = frozenset(name for name, when in self._every.items() if when.rests(step))
        return self._known[kind]
