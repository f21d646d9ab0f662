"""Kernels for NVIDIA GPUs, in Triton, which comes with PyTorch there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _cross_entropy(logits, targets, losses, stride, width, vocab_size, scale, write: tl.constexpr, block: tl.constexpr):
    """One row: its loss, then its gradient in place. The row's second reading comes from the cache."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    at_target = tl.load(logits + target).to(tl.float32)
    greatest = -float("inf")
    total = 0.0
    for first in range(0, vocab_size, block):
        places = first + tl.arange(0, block)
        x = tl.load(logits + places, mask=places < vocab_size, other=-float("inf")).to(tl.float32)
        before = greatest
        greatest = tl.maximum(greatest, tl.max(x))
        total = total * tl.exp(before - greatest) + tl.sum(tl.exp(x - greatest))
    tl.store(losses + row, tl.log(total) + greatest - at_target)
    if write:
        share = scale / total
        for first in range(0, width, block):
            places = first + tl.arange(0, block)
            x = tl.load(logits + places, mask=places < vocab_size, other=-float("inf")).to(tl.float32)
            gradient = tl.exp(x - greatest) * share - tl.where(places == target, scale, 0.0)
            tl.store(logits + places, gradient, mask=places < width)


def cross_entropy_(logits: Tensor, targets: Tensor, vocab_size: int, scale: float | None) -> Tensor:
    """Each row's cross-entropy; the logits are overwritten by scale × their gradient, unless scale is None."""
    rows, width = logits.shape
    losses = torch.empty(rows, device=logits.device)
    _cross_entropy[(rows,)](
        logits,
        targets,
        losses,
        logits.stride(0),
        width,
        vocab_size,
        scale or 0.0,
        write=scale is not None,
        block=8192,
        num_warps=16,
    )
    return losses
