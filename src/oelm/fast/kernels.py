"""The model's kernels for NVIDIA GPUs, in Triton, which comes with PyTorch there: GELU and add-and-norm."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def _normal(x):
    """The normal distribution up to x, and exp(-x²/2). By Abramowitz and Stegun's formula 7.1.26: within 1e-7."""
    bell = tl.exp2(x * x * (-0.5 * LOG2_E))
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))
    tail = 1.061405429 * t - 1.453152027
    tail = tail * t + 1.421413741
    tail = tail * t - 0.284496736
    tail = (tail * t + 0.254829592) * t * bell * 0.5
    return tl.where(x > 0, 1.0 - tail, tail), bell


def gelu(x: Tensor) -> Tensor:
    """The exact GELU."""
    out = torch.empty_like(x)
    block = 4096 if x.numel() > 2**24 else 1024
    _gelu[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), block=block, num_warps=4)
    return out


@triton.jit
def _gelu(x_in, out, count, block: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(x_in + places, mask=places < count, other=0.0).to(tl.float32)
    below, _ = _normal(x)
    tl.store(out + places, x * below, mask=places < count)


def gelu_backward(x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient by x, and its sum over all but the last dimension."""
    width = x.shape[-1]
    rows = x.numel() // width
    by_x = torch.empty_like(x)
    sums = torch.empty(triton.cdiv(rows, 64), width, device=x.device)
    grid = (len(sums), triton.cdiv(width, 128))
    _gelu_backward[grid](x, gradient, by_x, sums, rows, width, rows_each=64, tall=8, wide=128, num_warps=2)
    return by_x, _column_sums(sums)


@triton.jit
def _gelu_backward(
    x_in, gradient, by_x, sums, rows, width, rows_each: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr
):
    columns = tl.program_id(1) * wide + tl.arange(0, wide)
    total = tl.zeros((tall, wide), tl.float32)
    for first in range(0, rows_each, tall):
        row = tl.program_id(0).to(tl.int64) * rows_each + first + tl.arange(0, tall)
        places = row[:, None] * width + columns[None, :]
        inside = (row[:, None] < rows) & (columns[None, :] < width)
        x = tl.load(x_in + places, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
        below, bell = _normal(x)
        product = g * (below + x * 0.3989422804 * bell)
        tl.store(by_x + places, product, mask=inside)
        total += product
    tl.store(sums + tl.program_id(0) * width + columns, tl.sum(total, axis=0), mask=columns < width)


def _column_sums(parts: Tensor) -> Tensor:
    """The sum over the first dimension of a short, wide matrix."""
    height, width = parts.shape
    out = torch.empty(width, device=parts.device)
    _add_columns[(triton.cdiv(width, 16),)](parts, out, height, width, tall=64, wide=16, num_warps=8)
    return out


@triton.jit
def _add_columns(parts, out, height, width, tall: tl.constexpr, wide: tl.constexpr):
    columns = tl.program_id(0) * wide + tl.arange(0, wide)
    total = tl.zeros((tall, wide), tl.float32)
    for first in range(0, height, tall):
        rows = first + tl.arange(0, tall)
        inside = (rows[:, None] < height) & (columns[None, :] < width)
        total += tl.load(parts + rows[:, None] * width + columns[None, :], mask=inside, other=0.0)
    tl.store(out + columns, tl.sum(total, axis=0), mask=columns < width)


def add_norm(
    stream: Tensor, said: Tensor, weight: Tensor, bias: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """stream + said; its normalised copy, in said's precision; and each row's mean and inverse deviation."""
    width = stream.shape[-1]
    rows = stream.numel() // width
    total, normed = torch.empty_like(stream), torch.empty_like(said)
    mean, inverse = (torch.empty(rows, device=stream.device) for _ in range(2))
    tall, wide, warps = _tile(width)
    _add_norm[(triton.cdiv(rows, tall),)](
        stream,
        said,
        weight,
        bias,
        total,
        normed,
        mean,
        inverse,
        rows,
        width,
        epsilon,
        tall=tall,
        wide=wide,
        num_warps=warps,
    )
    return total, normed, mean, inverse


def _tile(width: int) -> tuple[int, int, int]:
    """Rows and columns that a program holds at once, and its warps."""
    wide = triton.next_power_of_2(width)
    return max(1, 2048 // wide), wide, max(2, wide // 1024)


@triton.jit
def _add_norm(
    stream,
    said,
    weight,
    bias,
    total,
    normed,
    means,
    inverses,
    rows,
    width,
    epsilon,
    tall: tl.constexpr,
    wide: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * tall + tl.arange(0, tall)
    column = tl.arange(0, wide)
    places = row[:, None] * width + column[None, :]
    used = column[None, :] < width
    inside = (row[:, None] < rows) & used
    x = tl.load(stream + places, mask=inside, other=0.0).to(tl.float32)
    x += tl.load(said + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + places, x, mask=inside)
    mean = tl.sum(x, axis=1) / width
    apart = tl.where(used, x - mean[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(apart * apart, axis=1) / width + epsilon)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(normed + places, apart * inverse[:, None] * w[None, :] + b[None, :], mask=inside)
    tl.store(means + row, mean, mask=row < rows)
    tl.store(inverses + row, inverse, mask=row < rows)


def add_norm_backward(
    by_total: Tensor, by_normed: Tensor, total: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by stream and said (the same, in two precisions), and by weight and bias, (2, width)."""
    width = total.shape[-1]
    rows = len(mean)
    by_stream, by_said = torch.empty_like(total), torch.empty_like(by_normed)
    tall, wide, warps = _tile(width)
    rows_each = triton.cdiv(triton.cdiv(rows, 512), tall) * tall
    sums = torch.empty(triton.cdiv(rows, rows_each), 2, width, device=total.device)
    _add_norm_backward[(len(sums),)](
        by_total,
        by_normed,
        total,
        mean,
        inverse,
        weight,
        by_stream,
        by_said,
        sums,
        rows,
        width,
        rows_each,
        tall=tall,
        wide=wide,
        num_warps=warps,
    )
    return by_stream, by_said, _column_sums(sums.flatten(1)).view(2, width)


@triton.jit
def _add_norm_backward(
    by_total,
    by_normed,
    total,
    means,
    inverses,
    weight,
    by_stream,
    by_said,
    sums,
    rows,
    width,
    rows_each,
    tall: tl.constexpr,
    wide: tl.constexpr,
):
    column = tl.arange(0, wide)
    used = column < width
    w = tl.load(weight + column, mask=used, other=0.0).to(tl.float32)
    by_weight = tl.zeros((tall, wide), tl.float32)
    by_bias = tl.zeros((tall, wide), tl.float32)
    for first in range(0, rows_each, tall):
        row = tl.program_id(0).to(tl.int64) * rows_each + first + tl.arange(0, tall)
        places = row[:, None] * width + column[None, :]
        inside = (row[:, None] < rows) & used[None, :]
        mean = tl.load(means + row, mask=row < rows, other=0.0)
        inverse = tl.load(inverses + row, mask=row < rows, other=0.0)
        x = tl.load(total + places, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(by_normed + places, mask=inside, other=0.0).to(tl.float32)
        straight = tl.load(by_total + places, mask=inside, other=0.0).to(tl.float32)
        unit = tl.where(inside, (x - mean[:, None]) * inverse[:, None], 0.0)
        by_weight += g * unit
        by_bias += g
        g *= w[None, :]
        along = tl.sum(g * unit, axis=1) / width
        level = tl.sum(g, axis=1) / width
        gradient = straight + (g - unit * along[:, None] - level[:, None]) * inverse[:, None]
        tl.store(by_stream + places, gradient, mask=inside)
        tl.store(by_said + places, gradient, mask=inside)
    out = sums + tl.program_id(0) * 2 * width + column
    tl.store(out, tl.sum(by_weight, axis=0), mask=used)
    tl.store(out + width, tl.sum(by_bias, axis=0), mask=used)
