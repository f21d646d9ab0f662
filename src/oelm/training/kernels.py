"""Kernels for NVIDIA GPUs, in Triton, which comes with PyTorch there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from oelm.training.flat import EPSILON, Flat

LOG2_E = tl.constexpr(math.log2(math.e))


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
        block=4096,
        num_warps=8,
    )
    return losses


@triton.jit
def _cross_entropy(logits, targets, losses, stride, width, vocab_size, scale, write: tl.constexpr, block: tl.constexpr):
    """One row: its loss, then its gradient in place. The row's second reading comes from the cache.

    Exponentials are taken to base 2, which is what the hardware has.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    at_target = tl.load(logits + target).to(tl.float32)
    greatest = -float("inf")
    total = 0.0
    whole = vocab_size // block * block
    for first in range(0, whole, block):
        x = tl.load(logits + first + tl.arange(0, block)).to(tl.float32)
        before = greatest
        greatest = tl.maximum(greatest, tl.max(x))
        total = total * tl.exp2((before - greatest) * LOG2_E) + tl.sum(tl.exp2(x * LOG2_E - greatest * LOG2_E))
    places = whole + tl.arange(0, block)
    x = tl.load(logits + places, mask=places < vocab_size, other=-float("inf")).to(tl.float32)
    before = greatest
    greatest = tl.maximum(greatest, tl.max(x))
    total = total * tl.exp2((before - greatest) * LOG2_E) + tl.sum(tl.exp2(x * LOG2_E - greatest * LOG2_E))
    tl.store(losses + row, tl.log(total) + greatest - at_target)
    if write:
        offset = greatest * LOG2_E - tl.log2(scale / total)
        for first in range(0, whole, block):
            x = tl.load(logits + first + tl.arange(0, block)).to(tl.float32)
            tl.store(logits + first + tl.arange(0, block), tl.exp2(x * LOG2_E - offset))
        x = tl.load(logits + places, mask=places < vocab_size, other=-float("inf")).to(tl.float32)
        tl.store(logits + places, tl.exp2(x * LOG2_E - offset), mask=places < width)
        tl.debug_barrier()  # the target's place is written twice, in this order
        tl.store(logits + target, tl.exp2(at_target * LOG2_E - offset) - scale)


class FusedAdamW:
    """flat.clipped_adamw in three launches, reading each unit's gradient from wherever it lies.

    The addresses of the gradients are told beforehand (`aim`), so that the launches can be part of a CUDA graph.
    """

    BLOCK = 4096

    def __init__(self, flat: Flat, betas: tuple[float, float], clip: float) -> None:
        self._flat, self._betas, self._clip = flat, betas, clip
        device = flat.weights.device
        sizes = [math.prod(unit.shape) for unit in flat.units]
        chunks = [(unit, first) for unit, size in enumerate(sizes) for first in range(0, size, self.BLOCK)]
        self._chunk_units = torch.tensor([unit for unit, _ in chunks], dtype=torch.int32, device=device)
        self._chunk_firsts = torch.tensor([first for _, first in chunks], dtype=torch.int32, device=device)
        self._starts = torch.tensor(flat.starts, dtype=torch.long, device=device)
        self._sizes = torch.tensor(sizes, dtype=torch.int32, device=device)
        self._decays = torch.tensor([unit.decay for unit in flat.units], device=device)
        self._addresses = torch.zeros(len(sizes), dtype=torch.long, device=device)
        self._narrow = torch.zeros(len(sizes), dtype=torch.int32, device=device)  # 1: bf16, 0: fp32
        self._squares = torch.empty(len(chunks), device=device)
        self._norm = torch.empty((), device=device)

    def aim(self, gradients: Sequence[Tensor]) -> None:
        """Notes where the gradients lie."""
        assert all(gradient.is_contiguous() for gradient in gradients)
        self._addresses.copy_(torch.tensor([gradient.data_ptr() for gradient in gradients]))
        self._narrow.copy_(torch.tensor([int(gradient.dtype == torch.bfloat16) for gradient in gradients]))

    def __call__(self, settings: Tensor) -> Tensor:
        """One update; settings: rate and the two corrections. Returns the gradient's norm."""
        flat, grid = self._flat, (len(self._squares),)
        where = (self._addresses, self._narrow, self._chunk_units, self._chunk_firsts, self._sizes)
        _sum_squares[grid](*where, self._squares, block=self.BLOCK, num_warps=8)
        _add_up[(1,)](self._squares, len(self._squares), self._norm, block=16384, num_warps=32)
        _adamw[grid](
            *where,
            self._starts,
            self._decays,
            flat.weights,
            flat.exp_avg,
            flat.exp_avg_sq,
            flat.copy,
            self._norm,
            settings,
            self._clip,
            1 - self._betas[0],
            1 - self._betas[1],
            EPSILON,
            copies=flat.copy is not flat.weights,
            block=self.BLOCK,
            num_warps=8,
        )
        return self._norm


@triton.jit
def _gradient(addresses, narrow, unit, places, size):
    address = tl.load(addresses + unit)
    if tl.load(narrow + unit) == 1:
        values = tl.load(address.to(tl.pointer_type(tl.bfloat16)) + places, mask=places < size, other=0.0)
        gradient = values.to(tl.float32)
    else:
        gradient = tl.load(address.to(tl.pointer_type(tl.float32)) + places, mask=places < size, other=0.0)
    return gradient


@triton.jit
def _sum_squares(addresses, narrow, chunk_units, chunk_firsts, sizes, squares, block: tl.constexpr):
    chunk = tl.program_id(0)
    unit = tl.load(chunk_units + chunk)
    places = tl.load(chunk_firsts + chunk) + tl.arange(0, block)
    gradient = _gradient(addresses, narrow, unit, places, tl.load(sizes + unit))
    tl.store(squares + chunk, tl.sum(gradient * gradient))


@triton.jit
def _add_up(squares, count, norm, block: tl.constexpr):
    total = tl.zeros((block,), tl.float32)
    for first in range(0, count, block):
        places = first + tl.arange(0, block)
        total += tl.load(squares + places, mask=places < count, other=0.0)
    tl.store(norm, tl.sqrt(tl.sum(total)))


@triton.jit
def _adamw(
    addresses,
    narrow,
    chunk_units,
    chunk_firsts,
    sizes,
    starts,
    decays,
    weights,
    exp_avgs,
    exp_avg_sqs,
    copy,
    norm,
    settings,
    clip,
    share1,
    share2,
    epsilon,
    copies: tl.constexpr,
    block: tl.constexpr,
):
    chunk = tl.program_id(0)
    unit = tl.load(chunk_units + chunk)
    size = tl.load(sizes + unit)
    places = tl.load(chunk_firsts + chunk) + tl.arange(0, block)
    inside = places < size
    rate = tl.load(settings)
    scale = tl.where(clip > 0, tl.minimum(clip / (tl.load(norm) + 1e-6), 1.0), 1.0)
    gradient = _gradient(addresses, narrow, unit, places, size) * scale
    start = tl.multiple_of(tl.load(starts + unit), 64)
    exp_avg = tl.load(exp_avgs + start + places, mask=inside)
    exp_avg_sq = tl.load(exp_avg_sqs + start + places, mask=inside)
    weight = tl.load(weights + start + places, mask=inside)
    exp_avg += share1 * (gradient - exp_avg)
    exp_avg_sq += share2 * (gradient * gradient - exp_avg_sq)
    spread = tl.sqrt(exp_avg_sq) / tl.load(settings + 2) + epsilon
    weight = weight * (1 - rate * tl.load(decays + unit)) - rate / tl.load(settings + 1) * exp_avg / spread
    tl.store(exp_avgs + start + places, exp_avg, mask=inside)
    tl.store(exp_avg_sqs + start + places, exp_avg_sq, mask=inside)
    tl.store(weights + start + places, weight, mask=inside)
    if copies:
        tl.store(copy + start + places, weight, mask=inside)
