"""What the optimiser's kernels compute, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from oelm.fast.adamw import EPSILON, Flat, settings


@torch.no_grad()
def clipped_adamw(
    flat: Flat, gradients: Sequence[Tensor], rate: float, betas: tuple[float, float], clip: float
) -> Tensor:
    """One update in place by a gradient per unit, clipped to a common norm, which is returned."""
    flat.updates += 1
    norm = torch.stack([gradient.float().square().sum() for gradient in gradients]).sum().sqrt()
    scale = (clip / (norm + 1e-6)).clamp(max=1.0) if clip else torch.ones_like(norm)
    buffers = (flat.weights, flat.exp_avg, flat.exp_avg_sq)
    for unit, gradient, (_, first, second), weight, exp_avg, exp_avg_sq in zip(
        flat.units,
        gradients,
        settings(rate, flat.updates.numpy(), betas).tolist(),
        *(flat.by_unit(buffer) for buffer in buffers),
        strict=True,
    ):
        clipped = gradient.float() * scale
        exp_avg.lerp_(clipped, 1 - betas[0])
        exp_avg_sq.lerp_(clipped.square(), 1 - betas[1])
        weight.mul_(1 - rate * unit.decay)
        weight.addcdiv_(exp_avg, exp_avg_sq.sqrt() / second + EPSILON, value=-rate / first)
    flat.refresh()
    return norm
