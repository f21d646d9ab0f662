"""AdamW over flat buffers: all that trains lies side by side, so that a step's update is a kernel or two.

The parameters of the logical model become views into these buffers. Nothing has to be copied to save or to load it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

EPSILON = 1e-8
ALIGNMENT = 64  # elements; matrix units want their operands to begin at multiples of 128 bytes


@dataclass(frozen=True)
class Unit:
    """A parameter that trains, by its logical name; in the buffers it is padded to `rows` rows."""

    name: str
    parameter: nn.Parameter
    decay: float
    rows: int

    @classmethod
    def of(cls, name: str, parameter: nn.Parameter, decay: float, multiple: int = 1) -> Unit:
        return cls(name, parameter, decay, math.ceil(len(parameter) / multiple) * multiple)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.parameter.shape[1:])


class Flat:
    """The weights of all units and their moments; and a copy of each unit's weights in the precision of the products.

    A copy may lie anywhere (`copies`, a tensor per unit); in fp32 the weights may serve as their own.
    """

    def __init__(self, units: Sequence[Unit], precision: torch.dtype) -> None:
        self.units = list(units)
        ends = itertools.accumulate(math.ceil(math.prod(u.shape) / ALIGNMENT) * ALIGNMENT for u in units)
        *self.starts, total = [0, *ends]
        self.weights = torch.zeros(total, device=units[0].parameter.device)
        self.exp_avg = torch.zeros_like(self.weights)
        self.exp_avg_sq = torch.zeros_like(self.weights)
        self.precision = precision
        exact = precision == torch.float32
        self.copies = self.by_unit(self.weights if exact else torch.zeros_like(self.weights, dtype=precision))
        # How often each unit was updated; on the CPU, where the corrections are computed.
        self.updates = torch.zeros(len(units))
        for unit, view in zip(units, self.by_name(self.weights).values(), strict=True):
            view.copy_(unit.parameter.detach())
            unit.parameter.data = view

    def by_unit(self, flat: Tensor) -> list[Tensor]:
        """A flat buffer as one tensor per unit."""
        return [
            flat[start : start + math.prod(unit.shape)].view(unit.shape)
            for unit, start in zip(self.units, self.starts, strict=True)
        ]

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat buffer as one tensor per logical parameter."""
        return {
            unit.name: padded[: len(unit.parameter)]
            for unit, padded in zip(self.units, self.by_unit(flat), strict=True)
        }

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
            **{f"{unit.name}.step": count for unit, count in zip(self.units, self.updates, strict=True)},
        }


def settings(
    rate: float | npt.NDArray[Any], updates: npt.NDArray[Any], betas: tuple[float, float]
) -> npt.NDArray[np.float32]:
    """What an update needs to know of each unit: the rate; and, for moments that began at zero, the first's divisor and
    that of the second's root. `updates`: how many there have been, this one included.
    """
    updates = updates.astype(np.float64)
    first, second = (1 - beta**updates for beta in betas)
    return np.stack([np.broadcast_to(rate, first.shape), first, np.sqrt(second)], axis=-1).astype(np.float32)
