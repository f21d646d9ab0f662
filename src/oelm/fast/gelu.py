"""The feed-forward layer's first half, its bias and its GELU, with the bias's gradient summed where it is computed."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT_HALF = math.sqrt(0.5)
DENSITY = 1 / math.sqrt(2 * math.pi)


class Up(nn.Module):
    """gelu(x·Wᵀ + b)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = _Up.apply(x.to(self.weight.dtype), self.weight, self.bias)  # type: ignore[no-untyped-call]
        return activated


class _Up(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        before = F.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, before)
        activated: Tensor = gelu(before)
        return activated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, before = ctx.saved_tensors
        by_before, by_bias = gelu_backward(before, gradients[0].contiguous())
        return by_before @ weight, by_before.flatten(0, 1).T @ x.flatten(0, 1), by_bias


@torch.library.custom_op("oelm::gelu", mutates_args=())
def gelu(x: Tensor) -> Tensor:
    """The exact GELU. Opaque to the compiler, which would compute it again in the backward pass."""
    if x.is_cuda:
        from oelm.fast import kernels

        return kernels.gelu(x)
    return F.gelu(x)


@gelu.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("oelm::gelu_backward", mutates_args=())
def gelu_backward(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient by x, and its sum over all but the last dimension, which is the gradient by a bias."""
    if x.is_cuda:
        from oelm.fast import kernels

        return kernels.gelu_backward(x, gradient)
    exact = x.float()
    slope = 0.5 * (1 + torch.erf(exact * ROOT_HALF)) + exact * DENSITY * torch.exp(-0.5 * exact.square())
    by_x = (gradient * slope).to(x.dtype)
    return by_x, by_x.flatten(0, -2).float().sum(0)


@gelu_backward.register_fake
def _(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[-1], dtype=torch.float32)
