"""The learning rate as a pure function of the step."""

import math

from oelm.config import RunConfig


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
