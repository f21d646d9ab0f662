"""Q, K and V, as far as they are matrices, as one product: a working layout of attention, for speed alone.

The matrices lie in one buffer, the frozen ones first. The product and the gradient of its input are computed
whole; the gradient of the weights only for the rows that train.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Stacked(nn.Module):
    """whole: every row; trained: its last rows, which get a gradient; order: the names of the stacked sides."""

    whole: Tensor

    def __init__(self, whole: Tensor, trained: nn.Parameter, order: tuple[str, ...]) -> None:
        super().__init__()
        self.register_buffer("whole", whole, persistent=False)
        self.trained = trained
        self.order = order

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = x.to(self.whole.dtype)
        if len(self.trained) == len(self.whole):
            sides = F.linear(x, self.trained)
        else:
            sides = _PartlyFrozen.apply(x, self.whole, self.trained)  # type: ignore[no-untyped-call]
        return dict(zip(self.order, sides.chunk(len(self.order), dim=-1), strict=True))


class _PartlyFrozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, whole: Tensor, trained: Tensor) -> Tensor:
        ctx.save_for_backward(x, whole)
        ctx.frozen_rows = len(whole) - len(trained)
        return F.linear(x, whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor]:
        x, whole = ctx.saved_tensors
        (gradient,) = gradients
        of_trained = gradient[..., ctx.frozen_rows :].flatten(0, 1)
        return gradient @ whole, None, of_trained.T @ x.flatten(0, 1)
