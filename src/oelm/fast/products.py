"""Matrix products whose weight gradients are computed all together, after the backward pass.

One at a time, the small ones would leave most of the chip idle. Besides, what is frozen or rests for a step is then
just not among them: neither the model nor what was compiled of it knows the difference.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.fast.gelu import gelu, gelu_backward
from oelm.model.projection import shuffle_table, shuffled


class Product(nn.Module):
    """x·Wᵀ, and a bias if there is one. It keeps x; the gradient by its outputs comes as the gradient by its `tap`.

    The tap is a tensor of no effect in the shape of the outputs, and of no size in memory.
    """

    weight: Tensor

    def __init__(self, weight: Tensor, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", weight, persistent=False)
        self.bias = bias
        self.tap: Tensor | None = None
        self.x: Tensor | None = None

    def expect(self, rows: torch.Size) -> None:
        """Makes the tap for inputs of (*rows, width)."""
        shape = torch.Size([*rows, len(self.weight)])
        if self.tap is None or self.tap.shape != shape:
            self.tap = self.weight.new_zeros(()).expand(shape).requires_grad_()

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        self.x = x.detach()  # or its gradient, which is zero, would be asked for
        out: Tensor = self._apply_to(x)
        return out

    def _apply_to(self, x: Tensor) -> Any:
        return _Product.apply(x, self.weight, self.bias, self.tap)  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tap: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor | None, Tensor]:
        (weight,), (gradient,) = ctx.saved_tensors, gradients
        by_bias = gradient.flatten(0, 1).sum(0) if ctx.needs_input_grad[2] else None
        return gradient @ weight, None, by_bias, gradient


class Up(Product):
    """gelu(x·Wᵀ + b), with the bias's gradient summed where the GELU's is computed."""

    def _apply_to(self, x: Tensor) -> Any:
        return _Up.apply(x, self.weight, self.bias, self.tap)  # type: ignore[no-untyped-call]


class _Up(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, tap: Tensor | None) -> Tensor:
        before = F.linear(x, weight, bias)
        ctx.save_for_backward(weight, before)
        activated: Tensor = gelu(before)
        return activated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        weight, before = ctx.saved_tensors
        by_before, by_bias = gelu_backward(before, gradients[0].contiguous())
        return by_before @ weight, None, by_bias, by_before


@dataclass(frozen=True)
class Reader:
    """A matrix that reads what a side of attention reads: the number of the side, its name there, and its rows."""

    side: int
    name: str
    rows: int


class Stacked(nn.Module):
    """What the sides of attention read from their inputs, with one product for all that read the same input.

    A product may have more rows than its readers; the rest is padding.
    """

    def __init__(self, stacks: Sequence[tuple[Product, Sequence[Reader]]]) -> None:
        super().__init__()
        self.products = nn.ModuleList(product for product, _ in stacks)
        self.readers = [list(readers) for _, readers in stacks]

    def forward(self, inputs: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        read: list[dict[str, Tensor]] = [{} for _ in inputs]
        for product, readers in zip(self.products, self.readers, strict=True):
            made = product(inputs[readers[0].side])
            rows = [reader.rows for reader in readers]
            padding = made.shape[-1] - sum(rows)
            parts = made.split([*rows, padding] if padding else rows, dim=-1)  # whose gradients meet in one copy
            for reader, part in zip(readers, parts, strict=False):
                read[reader.side][reader.name] = part
        return read


class FixedShuffle(nn.Module):
    """A signed permutation by a table that is made beforehand."""

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        self._tables = [table.clone() for table in shuffle_table(order)]

    def refresh(self, order: Tensor) -> None:
        for ours, theirs in zip(self._tables, shuffle_table(order), strict=True):
            ours.copy_(theirs)

    def forward(self, x: Tensor) -> Tensor:
        return shuffled(x, *self._tables)


@dataclass(frozen=True)
class Job:
    """A weight gradient to be computed: out (+)= gradientᵀ·x, both (tokens, width)."""

    gradient: Tensor
    x: Tensor
    out: Tensor


class WeightGradients:
    """Computes jobs, all of one tile in one launch where they are of a size for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._grouped: Any = None

    def __call__(self, jobs: Sequence[Job], call: Hashable, add: bool) -> None:
        """call: which of the calls this is that a captured step may repeat; two of them may share a job."""
        by_tile: dict[tuple[int, int] | None, list[Job]] = {None: list(jobs)}
        if self._device.type == "cuda":
            from oelm.fast import grouped_kernels

            self._grouped = self._grouped or grouped_kernels.Grouped(self._device)
            by_tile = {}
            for job in jobs:
                by_tile.setdefault(grouped_kernels.tile_of(job), []).append(job)
        for tile, some in by_tile.items():
            if tile is not None:
                self._grouped(some, tile, call, add)
                continue
            for job in some:
                multiply(job.gradient.T, job.x, job.out, add)

    def settle(self) -> None:
        """Ends what a capture of these launches could not do."""
        if self._grouped is not None:
            self._grouped.settle()


def multiply(a: Tensor, b: Tensor, out: Tensor, add: bool) -> None:
    """out (+)= a @ b, with out in a precision at least that of the factors."""
    if a.dtype == out.dtype:
        torch.addmm(out, a, b, out=out) if add else torch.mm(a, b, out=out)
    elif add:
        torch.addmm(out, a, b, out_dtype=out.dtype, out=out)
    else:
        torch.mm(a, b, out_dtype=out.dtype, out=out)
