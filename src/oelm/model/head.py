"""The output layer and its loss on a CPU: a bounded number of rows at a time, whose logits stay in its caches where the
vocabulary is small.

The gradient by the logits is known as soon as they are, so it is taken at once: they are never all in memory.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LOGITS = 2**18  # at once, but for
FEWEST_ROWS = 128  # at least


def mean_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy of targets (rows), from hidden (rows, d_model) and the output layer (vocabulary, d_model);
    as in PyTorch, rows whose target is -100 do not count."""
    plain = hidden.device.type != "cpu" or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    if not plain and torch.is_grad_enabled() and bool((targets >= 0).all()):
        loss: Tensor = _InPieces.apply(hidden, weight, targets)  # type: ignore[no-untyped-call]
        return loss
    return F.cross_entropy(F.linear(hidden, weight).float(), targets)


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        by_hidden, by_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        likelihoods = hidden.new_empty(len(hidden))
        rows = max(FEWEST_ROWS, LOGITS // len(weight))
        for first in range(0, len(hidden), rows):
            part = slice(first, first + rows)
            x, places = hidden[part], targets[part, None]
            logged = F.linear(x, weight).log_softmax(-1)
            likelihoods[part] = logged.gather(1, places).squeeze(1)
            gradient = logged.exp_()
            gradient.scatter_add_(1, places, gradient.new_full(places.shape, -1.0))
            torch.mm(gradient, weight, out=by_hidden[part])
            torch.addmm(by_weight, gradient.T, x, out=by_weight)
        ctx.save_for_backward(by_hidden, by_weight)
        return -likelihoods.mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, by_loss: Tensor) -> tuple[Tensor, Tensor, None]:
        by_hidden, by_weight = ctx.saved_tensors
        scale = by_loss / len(by_hidden)
        return by_hidden * scale, by_weight * scale, None
