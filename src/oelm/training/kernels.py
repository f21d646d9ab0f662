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
        num_warps=16,
    )
    return losses


@triton.jit
def _cross_entropy(logits, targets, losses, stride, width, vocab_size, scale, write: tl.constexpr, block: tl.constexpr):
    """One row: its loss, then its gradient in place. The row's second reading comes from the cache.

    Logits are taken to base 2, which is what the hardware has exponentials for. Each lane keeps a greatest logit and a
    sum of its own, so that nobody waits for anybody before the end of the row.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    at_target = tl.load(logits + target).to(tl.float32) * LOG2_E
    whole = vocab_size // block * block
    edge = whole + tl.arange(0, block)
    at_edge = tl.load(logits + edge, mask=edge < vocab_size, other=-float("inf")).to(tl.float32) * LOG2_E
    greatest = tl.maximum(at_edge, -1e30)  # never -inf, which minus itself is no number
    total = tl.exp2(at_edge - greatest)
    for first in range(0, whole, block):
        x = tl.load(logits + first + tl.arange(0, block)).to(tl.float32) * LOG2_E
        before, greatest = greatest, tl.maximum(greatest, x)
        total = total * tl.exp2(before - greatest) + tl.exp2(x - greatest)
    top = tl.max(greatest)
    log_sum = top + tl.log2(tl.sum(total * tl.exp2(greatest - top)))
    tl.store(losses + row, (log_sum - at_target) / LOG2_E)
    if write:
        for first in range(0, whole, block):
            places = first + tl.arange(0, block)
            x = tl.load(logits + places).to(tl.float32) * LOG2_E
            tl.store(logits + places, tl.exp2(x - log_sum) * scale)
        tl.store(logits + edge, tl.exp2(at_edge - log_sum) * scale, mask=edge < width)
        tl.debug_barrier()  # the target's place is written twice, in this order
        tl.store(logits + target, (tl.exp2(at_target - log_sum) - 1) * scale)


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
def _gradient(addresses, narrow, unit, places, inside):
    address = tl.load(addresses + unit)
    if tl.load(narrow + unit) == 1:
        halves = tl.multiple_of(address.to(tl.pointer_type(tl.bfloat16)), 16)
        gradient = tl.load(halves + places, mask=inside, other=0.0).to(tl.float32)
    else:
        words = tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)
        gradient = tl.load(words + places, mask=inside, other=0.0)
    return gradient


@triton.jit
def _sum_squares(addresses, narrow, chunk_units, chunk_firsts, sizes, squares, block: tl.constexpr):
    chunk = tl.program_id(0)
    unit = tl.load(chunk_units + chunk)
    first = tl.multiple_of(tl.load(chunk_firsts + chunk), block)
    size = tl.load(sizes + unit)
    places = first + tl.arange(0, block)
    if first + block <= size:  # a chunk without an edge is read in wide words
        gradient = _gradient(addresses, narrow, unit, places, tl.full((block,), True, tl.int1))
    else:
        gradient = _gradient(addresses, narrow, unit, places, places < size)
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
    first = tl.multiple_of(tl.load(chunk_firsts + chunk), block)
    size = tl.load(sizes + unit)
    start = tl.multiple_of(tl.load(starts + unit), 64)
    places = first + tl.arange(0, block)
    rate = tl.load(settings)
    size1 = rate / tl.load(settings + 1)
    root2 = tl.load(settings + 2)
    kept = 1 - rate * tl.load(decays + unit)
    scale = tl.where(clip > 0, tl.minimum(clip / (tl.load(norm) + 1e-6), 1.0), 1.0)
    buffers = (weights + start, exp_avgs + start, exp_avg_sqs + start, copy + start)
    factors = (size1, root2, kept, share1, share2, epsilon)
    if first + block <= size:
        inside = tl.full((block,), True, tl.int1)
        gradient = _gradient(addresses, narrow, unit, places, inside) * scale
        _adamw_chunk(gradient, buffers, factors, places, inside, copies)
    else:
        inside = places < size
        gradient = _gradient(addresses, narrow, unit, places, inside) * scale
        _adamw_chunk(gradient, buffers, factors, places, inside, copies)


@triton.jit
def _adamw_chunk(gradient, buffers, factors, places, inside, copies: tl.constexpr):
    weights, exp_avgs, exp_avg_sqs, copy = buffers
    size, root2, kept, share1, share2, epsilon = factors
    exp_avg = tl.load(exp_avgs + places, mask=inside)
    exp_avg_sq = tl.load(exp_avg_sqs + places, mask=inside)
    weight = tl.load(weights + places, mask=inside)
    exp_avg += share1 * (gradient - exp_avg)
    exp_avg_sq += share2 * (gradient * gradient - exp_avg_sq)
    weight = weight * kept - size * exp_avg / (tl.sqrt(exp_avg_sq) / root2 + epsilon)
    tl.store(exp_avgs + places, exp_avg, mask=inside)
    tl.store(exp_avg_sqs + places, exp_avg_sq, mask=inside)
    tl.store(weights + places, weight, mask=inside)
    if copies:
        tl.store(copy + places, weight, mask=inside)
