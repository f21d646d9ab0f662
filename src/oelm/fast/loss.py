"""The output layer and cross-entropy as one: loss and gradients without fp32 logits, a bounded number at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 8192  # tokens whose logits are in memory at once


def head_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, scale: float, gradient: Tensor, add: bool
) -> tuple[Tensor, Tensor]:
    """The summed cross-entropy of `hidden` (tokens, d_model), and scale × its gradient by `hidden`.

    scale × its gradient by `weight` is written into `gradient`, or added to it. Rows of `weight` beyond the vocabulary
    are padding: their logits take no part in the loss and their gradient is zero.
    """
    losses = torch.empty(len(hidden), device=hidden.device)
    by_hidden = torch.empty_like(hidden)
    for first in range(0, len(hidden), CHUNK):
        part = slice(first, first + CHUNK)
        logits = hidden[part] @ weight.T
        losses[part] = cross_entropy_(logits, targets[part], vocab_size, scale)
        torch.mm(logits, weight, out=by_hidden[part])
        _product(logits.T, hidden[part], gradient, add or first > 0)
    return losses.sum(), by_hidden


def head_score(hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """The summed cross-entropy alone."""
    total = torch.zeros((), device=hidden.device)
    for first in range(0, len(hidden), CHUNK):
        part = slice(first, first + CHUNK)
        total += cross_entropy_(hidden[part] @ weight.T, targets[part], vocab_size, None).sum()
    return total


def cross_entropy_(logits: Tensor, targets: Tensor, vocab_size: int, scale: float | None) -> Tensor:
    """Each row's cross-entropy; the logits are overwritten by scale × their gradient, unless scale is None."""
    if logits.is_cuda:
        from oelm.fast.kernels import cross_entropy_ as on_gpu

        return on_gpu(logits, targets, vocab_size, scale)
    log_p = logits[:, :vocab_size].float().log_softmax(-1)
    if scale is not None:
        known = F.one_hot(targets, vocab_size)
        logits[:, :vocab_size] = (log_p.exp() - known) * scale
        logits[:, vocab_size:] = 0
    return -log_p.gather(1, targets[:, None])[:, 0]


def _product(a: Tensor, b: Tensor, out: Tensor, add: bool) -> None:
    """out (+)= a @ b, with out in a precision at least that of the factors."""
    if a.dtype == out.dtype:
        torch.addmm(out, a, b, out=out) if add else torch.mm(a, b, out=out)
    elif add:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out)
    else:
        torch.mm(a, b, out_dtype=out.dtype, out=out)
