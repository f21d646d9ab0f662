"""AdamW for NVIDIA GPUs, in Triton: all units in three launches, each gradient read from wherever it lies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from oelm.fast.adamw import EPSILON, Flat
from oelm.fast.addresses import Addresses


class FusedAdamW:
    """Clips to a common norm and updates some units (by their numbers), each one's gradient read from where it lies."""

    BLOCK = 1024

    def __init__(self, flat: Flat, units: Sequence[int], betas: tuple[float, float], clip: float) -> None:
        self._flat, self._units, self._betas, self._clip = flat, units, betas, clip
        device = flat.weights.device
        sizes = [math.prod(unit.shape) for unit in flat.units]
        chunks = [(unit, first) for unit in units for first in range(0, sizes[unit], self.BLOCK)]
        self._chunk_units = torch.tensor([unit for unit, _ in chunks], dtype=torch.int32, device=device)
        self._chunk_firsts = torch.tensor([first for _, first in chunks], dtype=torch.int32, device=device)
        self._starts = torch.tensor(flat.starts, dtype=torch.long, device=device)
        self._sizes = torch.tensor(sizes, dtype=torch.int32, device=device)
        self._decays = torch.tensor([unit.decay for unit in flat.units], device=device)
        pairs = zip(flat.copies, flat.by_unit(flat.weights), strict=True)
        self._copy_addresses = [0 if c.data_ptr() == w.data_ptr() else c.data_ptr() for c, w in pairs]  # 0: not needed
        self._copies = torch.tensor(self._copy_addresses, device=device)
        self._where = Addresses(3, len(sizes), device)
        self._squares = torch.empty(len(chunks), device=device)
        self._norm = torch.empty((), device=device)

    def __call__(self, gradients: Sequence[Tensor], settings: Tensor) -> Tensor:
        """One update by a gradient per unit, those of others not looked at; settings: (units, 3), as `settings` gives
        them. Returns the gradient's norm.
        """
        assert all(gradients[unit].is_contiguous() for unit in self._units)
        flat, grid = self._flat, (len(self._squares),)
        addresses = [gradient.data_ptr() for gradient in gradients]
        aligned = [int((a | c) % 16 == 0) for a, c in zip(addresses, self._copy_addresses, strict=True)]
        narrow = [int(gradient.dtype == torch.bfloat16) for gradient in gradients]
        told = [self._where.note(row, values) for row, values in enumerate((addresses, narrow, aligned))]
        where = (*told, self._chunk_units, self._chunk_firsts, self._sizes)
        _sum_squares[grid](*where, self._squares, block=self.BLOCK, num_warps=4)
        _add_up[(1,)](self._squares, len(self._squares), self._norm, block=16384, num_warps=32)
        _adamw[grid](
            *where,
            self._starts,
            self._decays,
            flat.weights,
            flat.exp_avg,
            flat.exp_avg_sq,
            self._copies,
            self._norm,
            settings,
            self._clip,
            1 - self._betas[0],
            1 - self._betas[1],
            EPSILON,
            narrow_copies=flat.precision == torch.bfloat16,
            block=self.BLOCK,
            num_warps=4,
        )
        return self._norm

    def settle(self) -> None:
        """Ends what a capture of these launches could not do."""
        self._where.settle()


@triton.jit
def _at(address, kind: tl.constexpr, aligned: tl.constexpr):
    """A pointer from a number; what is known to be aligned is read and written in wide words."""
    pointer = address.to(tl.pointer_type(kind))
    return tl.multiple_of(pointer, 16) if aligned else pointer


@triton.jit
def _gradient(addresses, narrow, unit, places, inside, aligned: tl.constexpr):
    address = tl.load(addresses + unit)
    if tl.load(narrow + unit) == 1:
        halves = _at(address, tl.bfloat16, aligned)
        gradient = tl.load(halves + places, mask=inside, other=0.0).to(tl.float32)
    else:
        words = _at(address, tl.float32, aligned)
        gradient = tl.load(words + places, mask=inside, other=0.0)
    return gradient


@triton.jit
def _sum_squares(addresses, narrow, aligned, chunk_units, chunk_firsts, sizes, squares, block: tl.constexpr):
    chunk = tl.program_id(0)
    unit = tl.load(chunk_units + chunk)
    first = tl.multiple_of(tl.load(chunk_firsts + chunk), block)
    size = tl.load(sizes + unit)
    places = first + tl.arange(0, block)
    if (first + block <= size) & (tl.load(aligned + unit) == 1):
        gradient = _gradient(addresses, narrow, unit, places, tl.full((block,), True, tl.int1), True)
    else:
        gradient = _gradient(addresses, narrow, unit, places, places < size, False)
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
    aligned,
    chunk_units,
    chunk_firsts,
    sizes,
    starts,
    decays,
    weights,
    exp_avgs,
    exp_avg_sqs,
    copies,
    norm,
    settings,
    clip,
    share1,
    share2,
    epsilon,
    narrow_copies: tl.constexpr,
    block: tl.constexpr,
):
    chunk = tl.program_id(0)
    unit = tl.load(chunk_units + chunk)
    first = tl.multiple_of(tl.load(chunk_firsts + chunk), block)
    size = tl.load(sizes + unit)
    start = tl.multiple_of(tl.load(starts + unit), 64)
    places = first + tl.arange(0, block)
    rate = tl.load(settings + 3 * unit)
    size1 = rate / tl.load(settings + 3 * unit + 1)
    root2 = tl.load(settings + 3 * unit + 2)
    kept = 1 - rate * tl.load(decays + unit)
    scale = tl.where(clip > 0, tl.minimum(clip / (tl.load(norm) + 1e-6), 1.0), 1.0)
    copy = tl.load(copies + unit)
    buffers = (weights + start, exp_avgs + start, exp_avg_sqs + start)
    factors = (size1, root2, kept, share1, share2, epsilon)
    if (first + block <= size) & (tl.load(aligned + unit) == 1):
        inside = tl.full((block,), True, tl.int1)
        gradient = _gradient(addresses, narrow, unit, places, inside, True) * scale
        _adamw_chunk(gradient, buffers, copy, factors, places, inside, narrow_copies, True)
    else:
        inside = places < size
        gradient = _gradient(addresses, narrow, unit, places, inside, False) * scale
        _adamw_chunk(gradient, buffers, copy, factors, places, inside, narrow_copies, False)


@triton.jit
def _adamw_chunk(gradient, buffers, copy, factors, places, inside, narrow_copies: tl.constexpr, aligned: tl.constexpr):
    weights, exp_avgs, exp_avg_sqs = buffers
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
    if copy != 0:
        if narrow_copies:
            tl.store(_at(copy, tl.bfloat16, aligned) + places, weight.to(tl.bfloat16), mask=inside)
        else:
            tl.store(_at(copy, tl.float32, aligned) + places, weight, mask=inside)
