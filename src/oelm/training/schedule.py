"""What changes in the course of a run, as pure functions of the step: the learning rate, and what of Q and K trains."""

import math

from oelm.config import RunConfig
from oelm.variants import Variant


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


def trained_sides(config: RunConfig, step: int) -> dict[str, bool]:
    """Which of Q and K belong to what is optimised in update number `step`."""
    return {name: side.when.trains(step, config.max_steps) for name, side in config.variant.sides.items()}


def changes(config: RunConfig) -> set[int]:
    """The updates before which something of Q or K is frozen or thawed."""
    steps = (side.when.change(config.max_steps) for side in config.variant.sides.values())
    return {step for step in steps if step is not None}


def resting_sides(variant: Variant, step: int) -> frozenset[str]:
    """Which of Q and K are left out in this update, although they are optimised."""
    return frozenset(name for name, side in variant.sides.items() if side.when.rests(step))
