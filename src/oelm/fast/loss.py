"""The output layer and its cross-entropy as one: loss and gradients without fp32 logits, a bounded number at a time.

With e = exp(logit - the target's logit) and a row's sum z of them, the loss is log z, and its gradient by the logits is
e / z, less one at the target. So nothing has to be known of a row before its product is computed, and nothing of size
rows × vocabulary is read or written but e itself: 1 / z is applied to what is `d_model` wide.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oelm.fast.products import multiply

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
        raised, sums = exponentials(hidden[part], weight, targets[part], vocab_size, keep=True)
        assert raised is not None
        losses[part], inverse, weighted = settle(hidden[part], raised, sums, targets[part], scale)
        scale_rows_(torch.mm(raised, weight, out=by_hidden[part]), inverse)
        multiply(raised.T, weighted, gradient, add or first > 0)
    return losses.sum(), by_hidden


def head_score(hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """The summed cross-entropy alone."""
    total = torch.zeros((), device=hidden.device)
    for first in range(0, len(hidden), CHUNK):
        part = slice(first, first + CHUNK)
        _, sums = exponentials(hidden[part], weight, targets[part], vocab_size, keep=False)
        total += sums.sum(0).log().sum()
    return total


def exponentials(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, keep: bool
) -> tuple[Tensor | None, Tensor]:
    """exp(logit - the target's logit) over the vocabulary, 0 in its padding; and parts of the sums, (parts, rows).

    With keep=False only the sums. A logit that exceeds its target's by more than 62 counts as 62.
    """
    if _by_kernel(hidden):
        from oelm.fast import head_kernels

        return head_kernels.exponentials(hidden, weight, targets, vocab_size, keep)
    logits = (hidden @ weight.T).float()
    raised = (logits - logits.gather(1, targets[:, None])).clamp_(max=62.0).exp_()
    raised[:, vocab_size:] = 0
    return raised.to(hidden.dtype) if keep else None, raised.sum(1)[None]


def settle(hidden: Tensor, raised: Tensor, sums: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, ...]:
    """From the parts of the rows' sums: each row's loss, scale / sum, and `hidden` times that.

    In `raised`, the target's place becomes what makes raised / sum the gradient by the logits.
    """
    if _by_kernel(hidden):
        from oelm.fast import head_kernels

        return head_kernels.settle(hidden, raised, sums, targets, scale)
    total = sums.sum(0)
    inverse = scale / total
    raised.scatter_(1, targets[:, None], (1 - total)[:, None].to(raised.dtype))
    return total.log(), inverse, (hidden * inverse[:, None]).to(hidden.dtype)


def scale_rows_(x: Tensor, factors: Tensor) -> None:
    """Multiplies each row of x by a factor of its own."""
    if _by_kernel(x):
        from oelm.fast import head_kernels

        head_kernels.scale_rows_(x, factors)
    else:
        x.mul_(factors[:, None])


def _by_kernel(hidden: Tensor) -> bool:
    """Whether the kernels can be used: they read bf16, in words of 16 bytes."""
    return hidden.is_cuda and hidden.dtype == torch.bfloat16 and hidden.shape[1] % 8 == 0
