"""Many weight gradients in one launch, for NVIDIA GPUs, in Triton."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from oelm.fast.addresses import Addresses
from oelm.fast.products import Job

SIDES = (128, 64, 32, 16)  # of a tile; the largest that cuts a gradient into whole ones
DEEP = 64  # how many tokens are added up at a time

Tile = tuple[int, int]  # rows, columns


def tile_of(job: Job) -> Tile | None:
    """How the kernel would cut a job; None where it cannot do it: it reads bf16, and whole tiles only."""
    fits = (
        job.x.dtype == torch.bfloat16
        and len(job.x) % DEEP == 0
        and job.out.is_contiguous()
        and all(_in_words(factor) for factor in (job.gradient, job.x))
    )
    sides = [next((side for side in SIDES if size % side == 0), 0) for size in job.out.shape]
    return (sides[0], sides[1]) if fits and all(sides) else None


def _in_words(factor: Tensor) -> bool:
    return factor.stride(1) == 1 and factor.stride(0) % 16 == 0 and factor.data_ptr() % 16 == 0


@dataclass(frozen=True)
class _Tiles:
    """The tiles of some jobs (each with the number of its job, and its place in the gradient), and where those lie."""

    jobs: Tensor
    tops: Tensor
    lefts: Tensor
    where: Addresses


class Grouped:
    """out (+)= gradientᵀ·x of many jobs at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tiles: dict[tuple[Hashable, ...], _Tiles] = {}

    def __call__(self, jobs: Sequence[Job], tile: Tile, call: Hashable, add: bool) -> None:
        """call: which of the calls this is that a captured step may repeat; each has addresses of its own."""
        key = (call, *(job.out.data_ptr() for job in jobs))
        if key not in self._tiles:
            self._tiles[key] = self._cut(jobs, tile)
        tiles = self._tiles[key]
        rows = [
            tiles.where.note(row, values)
            for row, values in enumerate(
                (
                    [job.gradient.data_ptr() for job in jobs],
                    [job.x.data_ptr() for job in jobs],
                    [job.out.data_ptr() for job in jobs],
                    [job.gradient.stride(0) for job in jobs],
                    [job.x.stride(0) for job in jobs],
                    [job.out.shape[1] for job in jobs],
                )
            )
        ]
        _weight_gradients[(len(tiles.jobs),)](
            *rows,
            tiles.jobs,
            tiles.tops,
            tiles.lefts,
            tokens=len(jobs[0].x),
            add=add,
            narrow=jobs[0].out.dtype == torch.bfloat16,
            tall=tile[0],
            wide=tile[1],
            deep=DEEP,
            num_warps=4,
            num_stages=3,
        )

    def settle(self) -> None:
        for tiles in self._tiles.values():
            tiles.where.settle()

    def _cut(self, jobs: Sequence[Job], tile: Tile) -> _Tiles:
        tiles = [
            (number, top, left)
            for number, job in enumerate(jobs)
            for top in range(0, job.out.shape[0], tile[0])
            for left in range(0, job.out.shape[1], tile[1])
        ]
        numbers, tops, lefts = torch.tensor(tiles, dtype=torch.int32, device=self._device).T.contiguous()
        return _Tiles(numbers, tops, lefts, Addresses(6, len(jobs), self._device))


@triton.jit
def _at(address, kind: tl.constexpr):
    return tl.multiple_of(address.to(tl.pointer_type(kind)), 16)


@triton.jit
def _weight_gradients(
    gradients,
    xs,
    outs,
    gradient_strides,
    x_strides,
    widths,
    jobs,
    tops,
    lefts,
    tokens: tl.constexpr,
    add: tl.constexpr,
    narrow: tl.constexpr,
    tall: tl.constexpr,
    wide: tl.constexpr,
    deep: tl.constexpr,
):
    job = tl.load(jobs + tl.program_id(0))
    top = tl.multiple_of(tl.load(tops + tl.program_id(0)), tall)
    left = tl.multiple_of(tl.load(lefts + tl.program_id(0)), wide)
    gradient_stride = tl.multiple_of(tl.load(gradient_strides + job), 16)
    x_stride = tl.multiple_of(tl.load(x_strides + job), 16)
    token = tl.arange(0, deep)
    row, column = top + tl.arange(0, tall), left + tl.arange(0, wide)
    gradient = _at(tl.load(gradients + job), tl.bfloat16) + token[:, None] * gradient_stride + row[None, :]
    x = _at(tl.load(xs + job), tl.bfloat16) + token[:, None] * x_stride + column[None, :]
    total = tl.zeros((tall, wide), tl.float32)
    for _ in range(0, tokens, deep):
        total = tl.dot(tl.load(gradient).T, tl.load(x), total)
        gradient += deep * gradient_stride
        x += deep * x_stride
    places = row[:, None] * tl.multiple_of(tl.load(widths + job), wide) + column[None, :]
    if narrow:  # noqa: SIM108
        out = _at(tl.load(outs + job), tl.bfloat16) + places
    else:
        out = _at(tl.load(outs + job), tl.float32) + places
    if add:
        total += tl.load(out)
    tl.store(out, total.to(out.dtype.element_ty))
