"""AdamW over flat buffers: all that trains lies side by side, so that a step's update is a kernel or two.

The parameters of the logical model become views into these buffers. Nothing has to be copied to save or to load it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

EPSILON = 1e-8
ALIGNMENT = 64  # elements; matrix units want their operands to begin at multiples of 128 bytes


@dataclass(frozen=True)
class Unit:
    """Parameters that one working tensor stands for: stacked along their first dimension, padded to `rows` rows."""

    parameters: dict[str, nn.Parameter]
    decay: float
    rows: int

    @classmethod
    def of(cls, parameters: dict[str, nn.Parameter], decay: float, multiple: int = 1) -> Unit:
        rows = sum(len(p) for p in parameters.values())
        return cls(parameters, decay, math.ceil(rows / multiple) * multiple)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *next(iter(self.parameters.values())).shape[1:])


class Flat:
    """The weights of all units and their moments; and a copy of each unit's weights in the precision of the products.

    A copy may lie anywhere (`copies`, a tensor per unit); in fp32 the weights serve as their own.
    """

    def __init__(self, units: Sequence[Unit], precision: torch.dtype) -> None:
        self.units = list(units)
        ends = itertools.accumulate(math.ceil(math.prod(u.shape) / ALIGNMENT) * ALIGNMENT for u in units)
        *self.starts, total = [0, *ends]
        device = next(iter(units[0].parameters.values())).device
        self.weights = torch.zeros(total, device=device)
        self.exp_avg = torch.zeros_like(self.weights)
        self.exp_avg_sq = torch.zeros_like(self.weights)
        self.precision = precision
        exact = precision == torch.float32
        self.copies = self.by_unit(self.weights if exact else torch.zeros_like(self.weights, dtype=precision))
        self.updates = torch.zeros(())  # how many there have been; on the CPU, where the corrections are computed
        views = self.by_name(self.weights)
        for name, parameter in itertools.chain.from_iterable(unit.parameters.items() for unit in units):
            views[name].copy_(parameter.detach())
            parameter.data = views[name]

    def by_unit(self, flat: Tensor) -> list[Tensor]:
        """A flat buffer as one tensor per unit."""
        return [
            flat[start : start + math.prod(unit.shape)].view(unit.shape)
            for unit, start in zip(self.units, self.starts, strict=True)
        ]

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat buffer as one tensor per logical parameter."""
        views = {}
        for unit, stacked in zip(self.units, self.by_unit(flat), strict=True):
            ends = list(itertools.accumulate(map(len, unit.parameters.values())))
            for name, first, last in zip(unit.parameters, [0, *ends], ends, strict=False):
                views[name] = stacked[first:last]
        return views

    def refresh(self) -> None:
        """Makes the copies anew from the weights."""
        for copied, weights in zip(self.copies, self.by_unit(self.weights), strict=True):
            copied.copy_(weights)

    def moments(self) -> dict[str, Tensor]:
        """The optimiser's state by logical name, as a checkpoint holds it."""
        first, second = self.by_name(self.exp_avg), self.by_name(self.exp_avg_sq)
        return {
            **{f"{name}.exp_avg": tensor for name, tensor in first.items()},
            **{f"{name}.exp_avg_sq": tensor for name, tensor in second.items()},
            **{f"{name}.step": self.updates for name in first},
        }


def corrections(updates: float, betas: tuple[float, float]) -> tuple[float, float]:
    """What makes up for moments that began at zero: the first moment's divisor, and that of the second's root."""
    return 1 - betas[0] ** updates, math.sqrt(1 - betas[1] ** updates)
