"""AdamW over flat buffers: what is updated alike lies side by side, so that a step's update is a kernel or two.

The parameters of the logical model become views into these buffers. Nothing has to be copied to save or to load it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

EPSILON = 1e-8
ALIGNMENT = 64  # elements; matrix units want their operands to begin at multiples of 128 bytes


@dataclass(frozen=True)
class Unit:
    """Parameters that one working tensor stands for: stacked along their first dimension, padded to `rows` rows."""

    parameters: dict[str, nn.Parameter]
    rows: int

    @classmethod
    def of(cls, parameters: dict[str, nn.Parameter], multiple: int = 1) -> Unit:
        rows = sum(len(p) for p in parameters.values())
        return cls(parameters, math.ceil(rows / multiple) * multiple)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *next(iter(self.parameters.values())).shape[1:])


class Buffers(NamedTuple):
    """A group's tensors, all flat but for the number of its updates."""

    weights: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    gradient: Tensor
    copy: Tensor  # the weights in the precision that products are computed in; may be the weights themselves
    updates: Tensor


class Group:
    """Units with one weight decay, one precision of their gradient and one of their working copy."""

    def __init__(self, units: list[Unit], decay: float, copy: torch.dtype, gradient: torch.dtype) -> None:
        self.units = units
        self.decay = decay
        ends = itertools.accumulate(math.ceil(math.prod(u.shape) / ALIGNMENT) * ALIGNMENT for u in units)
        *self._starts, total = [0, *ends]
        device = next(iter(units[0].parameters.values())).device
        weights = torch.zeros(total, device=device)
        self.buffers = Buffers(
            weights,
            torch.zeros_like(weights),
            torch.zeros_like(weights),
            torch.zeros_like(weights, dtype=gradient),
            weights if copy == torch.float32 else torch.zeros_like(weights, dtype=copy),
            torch.zeros((), device=device),
        )
        for name, view in self.by_name(weights).items():
            parameter = next(u.parameters[name] for u in units if name in u.parameters)
            view.copy_(parameter.detach())
            parameter.data = view

    def by_unit(self, flat: Tensor) -> list[Tensor]:
        """A flat buffer as one tensor per unit."""
        return [
            flat[start : start + math.prod(unit.shape)].view(unit.shape)
            for unit, start in zip(self.units, self._starts, strict=True)
        ]

    def by_name(self, flat: Tensor) -> dict[str, Tensor]:
        """A flat buffer as one tensor per logical parameter."""
        views = {}
        for unit, stacked in zip(self.units, self.by_unit(flat), strict=True):
            first = 0
            for name, parameter in unit.parameters.items():
                views[name] = stacked[first : first + len(parameter)]
                first += len(parameter)
        return views

    def moments(self) -> dict[str, Tensor]:
        """The optimiser's state by logical name, as a checkpoint holds it."""
        first, second = self.by_name(self.buffers.exp_avg), self.by_name(self.buffers.exp_avg_sq)
        return {
            key: tensor
            for name in first
            for key, tensor in (
                (f"{name}.exp_avg", first[name]),
                (f"{name}.exp_avg_sq", second[name]),
                (f"{name}.step", self.buffers.updates),
            )
        }


def clipped_adamw(
    groups: list[Buffers], decays: list[float], rate: Tensor, betas: tuple[float, float], clip: float
) -> Tensor:
    """One update of all groups in place, gradients clipped to a common norm, which is returned."""
    norm = torch.stack([group.gradient.float().square().sum() for group in groups]).sum().sqrt()
    scale = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(norm)
    for group, decay in zip(groups, decays, strict=True):
        group.updates.add_(1)
        steps = group.updates.double()
        gradient = group.gradient.float() * scale
        exp_avg = group.exp_avg.lerp(gradient, 1 - betas[0])
        exp_avg_sq = torch.lerp(group.exp_avg_sq, gradient.square(), 1 - betas[1])
        size = (rate / (1 - betas[0] ** steps)).float()
        spread = exp_avg_sq.sqrt() / (1 - betas[1] ** steps).sqrt().float() + EPSILON
        weights = group.weights * (1 - rate * decay).float() - size * exp_avg / spread
        group.exp_avg.copy_(exp_avg)
        group.exp_avg_sq.copy_(exp_avg_sq)
        group.weights.copy_(weights)
        if group.copy.dtype != torch.float32:
            group.copy.copy_(weights)
    return norm
