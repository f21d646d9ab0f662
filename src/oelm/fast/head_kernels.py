"""The output layer's kernels for NVIDIA GPUs, in Triton: its product with the exponentials taken on the way out."""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = tl.constexpr(math.log2(math.e))
HIGHEST = tl.constexpr(90.0)  # in powers of two: what a bf16 can hold, and the inverse of a sum of 2¹⁶ such as well
TALL, WIDE, DEEP = 128, 128, 64  # of a tile: two programs of this size fit on a multiprocessor
GROUP = 16  # tiles above each other that are computed together, for the sake of the cache


def exponentials(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, keep: bool
) -> tuple[Tensor | None, Tensor]:
    """exp(logit - the target's logit) over the vocabulary, 0 in its padding; and parts of each row's sum.

    With keep=False only the sums. A logit that exceeds its target's by more than 62 counts as 62.
    """
    (rows, depth), width = hidden.shape, len(weight)
    at_target = torch.empty(rows, device=hidden.device)
    tall, wide = _few_rows(depth)
    _target_logits[(triton.cdiv(rows, tall),)](
        hidden, weight, targets, at_target, rows, depth, tall=tall, wide=wide, num_warps=4
    )
    out = torch.empty(rows, width, device=hidden.device, dtype=hidden.dtype) if keep else None
    sums = torch.empty(triton.cdiv(width, WIDE), rows, device=hidden.device)
    tiles = triton.cdiv(rows, TALL) * len(sums)
    programs = min(tiles, 2 * _multiprocessors(hidden.device))
    _exponentials[(programs,)](
        TensorDescriptor.from_tensor(hidden, [TALL, DEEP]),
        TensorDescriptor.from_tensor(weight, [WIDE, DEEP]),
        at_target,
        TensorDescriptor.from_tensor(weight if out is None else out, [TALL, WIDE // 2]),
        sums,
        rows,
        vocab_size,
        width,
        programs,
        depth=depth,
        keep=keep,
        tall=TALL,
        wide=WIDE,
        deep=DEEP,
        group=GROUP,
        num_warps=4,
        num_stages=3,
    )
    return out, sums


def _few_rows(depth: int) -> tuple[int, int]:
    """Rows and columns that a program holds at once."""
    wide = triton.next_power_of_2(depth)
    return max(1, min(16, 8192 // wide)), wide


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def _target_logits(hidden, weight, targets, at_target, rows, depth, tall: tl.constexpr, wide: tl.constexpr):
    row = tl.program_id(0) * tall + tl.arange(0, tall)
    column = tl.arange(0, wide)
    target = tl.load(targets + row, mask=row < rows, other=0)
    inside = (row[:, None] < rows) & (column[None, :] < depth)
    h = tl.load(hidden + row.to(tl.int64)[:, None] * depth + column[None, :], mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + target[:, None] * depth + column[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(at_target + row, tl.sum(h * w, axis=1), mask=row < rows)


@triton.jit
def _raised(logits, at_target, column, vocab_size):
    apart = (logits - at_target[:, None]) * LOG2_E
    apart = tl.minimum(apart, HIGHEST, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(column[None, :] < vocab_size, tl.exp2(apart), 0.0)


@triton.jit
def _exponentials(
    hidden,
    weight,
    at_target,
    out,
    sums,
    rows,
    vocab_size,
    width,
    programs,
    depth: tl.constexpr,
    keep: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    deep: tl.constexpr,
    group: tl.constexpr,
):
    """Tiles of the product, one after the other, the next one's operands on their way while one is written out."""
    high, across = tl.cdiv(rows, tall), tl.cdiv(width, wide)
    for tile in tl.range(tl.program_id(0), high * across, programs, flatten=True):
        first = tile // (group * across) * group
        size = min(high - first, group)
        top = (first + tile % (group * across) % size) * tall
        number = tile % (group * across) // size
        left = number * wide
        product = tl.zeros((tall, wide), tl.float32)
        for place in range(0, depth, deep):
            product = tl.dot(hidden.load([top, place]), weight.load([left, place]).T, product)
        row = top + tl.arange(0, tall)
        target = tl.load(at_target + row, mask=row < rows, other=0.0)
        one, other = tl.split(tl.permute(tl.reshape(product, (tall, 2, wide // 2)), (0, 2, 1)))
        column = left + tl.arange(0, wide // 2)
        one = _raised(one, target, column, vocab_size)
        if keep:
            out.store([top, left], one.to(tl.bfloat16))
        other = _raised(other, target, column + wide // 2, vocab_size)
        if keep:
            out.store([top, left + wide // 2], other.to(tl.bfloat16))
        tl.store(sums + number * rows + row, tl.sum(one, axis=1) + tl.sum(other, axis=1), mask=row < rows)


def settle(hidden: Tensor, raised: Tensor, sums: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, ...]:
    """From the parts of the rows' sums: each row's loss, scale / sum, and `hidden` times that.

    In `raised`, the target's place becomes what makes raised / sum the gradient by the logits.
    """
    rows, depth = hidden.shape
    losses, inverse = (torch.empty(rows, device=hidden.device) for _ in range(2))
    weighted = torch.empty_like(hidden)
    tall, wide = _few_rows(depth)
    _settle[(triton.cdiv(rows, tall),)](
        hidden,
        raised,
        sums,
        targets,
        losses,
        inverse,
        weighted,
        rows,
        depth,
        raised.stride(0),
        len(sums),
        scale,
        tall=tall,
        wide=wide,
        parts=triton.next_power_of_2(len(sums)),
        num_warps=4,
    )
    return losses, inverse, weighted


@triton.jit
def _settle(
    hidden,
    raised,
    sums,
    targets,
    losses,
    inverses,
    weighted,
    rows,
    depth,
    stride,
    count,
    scale,
    tall: tl.constexpr,
    wide: tl.constexpr,
    parts: tl.constexpr,
):
    row = tl.program_id(0) * tall + tl.arange(0, tall)
    used = row < rows
    part = tl.arange(0, parts)
    inside = (part[:, None] < count) & used[None, :]
    total = tl.sum(tl.load(sums + part[:, None] * rows + row[None, :], mask=inside, other=0.0), axis=0)
    tl.store(losses + row, tl.log2(total) / LOG2_E, mask=used)
    inverse = scale / total
    tl.store(inverses + row, inverse, mask=used)
    target = tl.load(targets + row, mask=used, other=0)
    tl.store(raised + row.to(tl.int64) * stride + target, 1.0 - total, mask=used)
    column = tl.arange(0, wide)
    places = row.to(tl.int64)[:, None] * depth + column[None, :]
    inside = used[:, None] & (column[None, :] < depth)
    h = tl.load(hidden + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(weighted + places, h * inverse[:, None], mask=inside)


def scale_rows_(x: Tensor, factors: Tensor) -> None:
    """Multiplies each row of x by a factor of its own."""
    rows, depth = x.shape
    tall, wide = _few_rows(depth)
    _scale_rows[(triton.cdiv(rows, tall),)](x, factors, rows, depth, tall=tall, wide=wide, num_warps=4)


@triton.jit
def _scale_rows(x, factors, rows, depth, tall: tl.constexpr, wide: tl.constexpr):
    row = tl.program_id(0) * tall + tl.arange(0, tall)
    column = tl.arange(0, wide)
    places = row.to(tl.int64)[:, None] * depth + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < depth)
    factor = tl.load(factors + row, mask=row < rows, other=0.0)
    scaled = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) * factor[:, None]
    tl.store(x + places, scaled, mask=inside)
