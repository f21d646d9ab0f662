"""Adding to the residual stream and normalising it as one, in both directions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FusedAddNorm(nn.Module):
    """What model.gpt.AddNorm does; the normalised copy comes in the precision of the products."""

    def __init__(self, norm: nn.LayerNorm, precision: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias, self.epsilon = norm.weight, norm.bias, norm.eps
        self.precision = precision

    def forward(self, stream: Tensor, said: Tensor | None) -> tuple[Tensor, Tensor]:
        if said is None:
            return stream, F.layer_norm(stream, self.weight.shape, self.weight, self.bias, self.epsilon)
        said = said.to(self.precision)
        total, normed = _AddNorm.apply(stream, said, self.weight, self.bias, self.epsilon)  # type: ignore[no-untyped-call]
        return total, normed


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, said: Tensor, weight: Tensor, bias: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        total, normed, mean, inverse = add_norm(stream, said, weight, bias, epsilon)
        ctx.save_for_backward(total, mean, inverse, weight)
        return total, normed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        by_total, by_normed = (gradient.contiguous() for gradient in gradients)
        by_stream, by_said, (by_weight, by_bias) = add_norm_backward(by_total, by_normed, *ctx.saved_tensors)
        return by_stream, by_said, by_weight, by_bias, None


@torch.library.custom_op("oelm::add_norm", mutates_args=())
def add_norm(
    stream: Tensor, said: Tensor, weight: Tensor, bias: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """stream + said; its normalised copy, in said's precision; and each row's mean and inverse deviation."""
    if stream.is_cuda:
        from oelm.fast import kernels

        return kernels.add_norm(stream, said, weight, bias, epsilon)
    total = stream + said
    normed, mean, inverse = torch.native_layer_norm(total, weight.shape, weight, bias, epsilon)
    return total, normed.to(said.dtype), mean.flatten(), inverse.flatten()


@add_norm.register_fake
def _(stream: Tensor, said: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, ...]:
    per_row = stream.new_empty(stream.shape[:-1].numel(), dtype=torch.float32)
    return torch.empty_like(stream), torch.empty_like(said), per_row, torch.empty_like(per_row)


@torch.library.custom_op("oelm::add_norm_backward", mutates_args=())
def add_norm_backward(
    by_total: Tensor, by_normed: Tensor, total: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by stream and said (the same, in two precisions), and by weight and bias, (2, width)."""
    if total.is_cuda:
        from oelm.fast import kernels

        return kernels.add_norm_backward(by_total, by_normed, total, mean, inverse, weight)
    rows = (*total.shape[:-1], 1)
    by_sum, by_weight, by_bias = torch.ops.aten.native_layer_norm_backward(
        by_normed.float(), total, weight.shape, mean.view(rows), inverse.view(rows), weight, weight, [True, True, True]
    )
    by_stream = by_total + by_sum
    return by_stream, by_stream.to(by_normed.dtype, copy=True), torch.stack([by_weight, by_bias])


@add_norm_backward.register_fake
def _(
    by_total: Tensor, by_normed: Tensor, total: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor
) -> tuple[Tensor, ...]:
    return torch.empty_like(total), torch.empty_like(by_normed), weight.new_empty(2, len(weight))
