"""The exact GELU in both directions, with the gradient of the bias before it summed where its own is computed."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

ROOT_HALF = math.sqrt(0.5)
DENSITY = 1 / math.sqrt(2 * math.pi)


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
