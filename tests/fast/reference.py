"""What the optimiser's kernels compute, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oelm.fast.adamw import EPSILON, Flat, settings


class PlainAdamW:
    """FusedAdamW in plain PyTorch: clips to a common norm and updates some units, by their numbers."""

    def __init__(self, flat: Flat, units: Sequence[int], betas: tuple[float, float], clip: float) -> None:
        self._flat, self._units, self._betas, self._clip = flat, units, betas, clip

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor], settings: Tensor) -> Tensor:
        flat, betas = self._flat, self._betas
        norm = torch.stack([gradients[unit].float().square().sum() for unit in self._units]).sum().sqrt()
        scale = (self._clip / (norm + 1e-6)).clamp(max=1.0) if self._clip else torch.ones_like(norm)
        buffers = [flat.by_unit(buffer) for buffer in (flat.weights, flat.exp_avg, flat.exp_avg_sq)]
        for number in self._units:
            weight, exp_avg, exp_avg_sq = (buffer[number] for buffer in buffers)
            rate, first, second = settings[number].tolist()
            clipped = gradients[number].float() * scale
            exp_avg.lerp_(clipped, 1 - betas[0])
            exp_avg_sq.lerp_(clipped.square(), 1 - betas[1])
            weight.mul_(1 - rate * flat.units[number].decay)
            weight.addcdiv_(exp_avg, exp_avg_sq.sqrt() / second + EPSILON, value=-rate / first)
            flat.copies[number].copy_(weight)
        return norm

    def settle(self) -> None:
        """Has no tables that a graph could read."""


def clipped_adamw(
    flat: Flat, gradients: Sequence[Tensor], rate: float, betas: tuple[float, float], clip: float
) -> Tensor:
    """One update in place of every unit at one rate; returns the gradient's norm."""
    flat.updates += 1
    update = PlainAdamW(flat, range(len(flat.units)), betas, clip)
    return update(gradients, torch.from_numpy(settings(rate, flat.updates.numpy(), betas)))
