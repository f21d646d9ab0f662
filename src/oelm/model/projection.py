"""One side of attention: what becomes of the normalised stream until it is a query, a key or a value.

    input = the stream, or a trained mix of it with the tokens before     shift
    out   = matrix · input, then each head's core                         source, core
          + up · (down · input) + up' · gelu(down' · input)               lowrank, residual
    out   = out · gain + bias, and each head times its temperature

All corrections are computed on the activations: no gradient the size of the matrix is needed to train them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from oelm.config import Model
from oelm.model.orthogonal import DRAW, gaussian
from oelm.specs import Side

# The matrices that read the input; all of those that read the same one can be one product.
READERS = ("weight", "free", "lowrank_down", "residual_down")
# What a source has left in the model, in the heads that are frozen and in those that are not.
MATRICES = ("weight", "order", "free")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"lowrank": lambda x: x, "residual": F.gelu}


def shapes(side: Side, shape: Model) -> dict[str, tuple[int, ...]]:
    """The tensors of a side in one layer, by name."""
    width, heads = shape.d_model, shape.num_heads
    key = width // side.thin
    ruled = frozen_heads(side, heads) * (key // heads)
    sizes: dict[str, tuple[int, ...]] = {}
    if side.multiplies:
        sizes["weight"] = (ruled, width)
    if side.heads < 100:
        sizes["free"] = (key - ruled, width)
    if side.tensor == "order":
        sizes["order"] = (width,)
    sizes |= {f"shift{back}": (width,) for back in range(1, side.shift + 1)}
    if side.core:
        sizes["core"] = (heads, key // heads, key // heads)
    for name in ACTIVATIONS:
        if rank := side.rank(name, width):
            sizes |= {f"{name}_down": (rank, width), f"{name}_up": (key, rank)}
    sizes |= {name: (key,) for name in ("gain", "bias") if getattr(side, name)}
    return sizes | ({"temperature": (heads,)} if side.temperature else {})


def frozen_heads(side: Side, num_heads: int) -> int:
    """How many of the heads the schedule holds for, the first ones."""
    return num_heads if side.heads == 100 else round(side.heads / 100 * num_heads)


def draw(side: Side, shape: Model, name: str, generator: Callable[[str], Generator]) -> Tensor:
    """A tensor of a side at birth; generator: a tensor's own, by its name.

    A corrected matrix begins as the plain one does; over nothing at all, a correction begins at the matrix's scale.
    """
    size = shapes(side, shape)[name]
    if name in MATRICES:
        whole = DRAW[side.source](shape.d_model, shape.num_heads, generator(side.tensor or name), side.thin)
        return whole[-size[0] :] if name == "free" else whole[: size[0]]
    if name.endswith("_down") or (name.endswith("_up") and side.source == "zero"):
        return gaussian(size[0], size[1], size[1] ** -0.5, generator(name))
    return torch.full(size, {"gain": side.gain, "temperature": 1.0}.get(name, 0.0))


class Projection(nn.Module):
    """One side in one layer, (batch, time, d_model) → (batch, heads, time, d_head)."""

    # Those that the side has; shift1, shift2, …, lowrank_down, lowrank_up, residual_down and residual_up likewise.
    weight: Tensor
    free: Tensor
    order: Tensor
    core: Tensor
    gain: Tensor
    bias: Tensor
    temperature: Tensor

    def __init__(self, side: Side, shape: Model) -> None:
        super().__init__()
        self.source, self.shift, self.num_heads = side.source, side.shift, shape.num_heads
        self.width = shape.d_model // side.thin
        self.corrections = [name for name in ACTIVATIONS if getattr(side, name)]
        for name, size in shapes(side, shape).items():
            self.register_parameter(name, nn.Parameter(torch.empty(size)))
        self.readers = [name for name in READERS if hasattr(self, name)]
        # An engine may have ways of its own to multiply by a correction's second matrix and to shuffle.
        self.ups = nn.ModuleDict()
        self.fixed_shuffle: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.mixed(x)
        return self.finished(x, self.read(x))

    def mixed(self, x: Tensor) -> Tensor:
        """What the side reads: each channel a mix of a token's own value and those of the tokens before it."""
        out = x
        for back in range(1, self.shift + 1):
            before = F.pad(x, (0, 0, back, 0))[:, : x.shape[1]]
            out = out + getattr(self, f"shift{back}") * (before - x)
        return out

    def read(self, x: Tensor) -> dict[str, Tensor]:
        """What each of the matrices that read the input makes of it."""
        return {name: F.linear(x, getattr(self, name)) for name in self.readers}

    def finished(self, x: Tensor, read: Mapping[str, Tensor]) -> Tensor:
        """The heads, from the input and from what each reader has made of it."""
        out = self._from_source(x, read)
        for name in self.corrections:
            term = self._up(name, ACTIVATIONS[name](read[f"{name}_down"]))
            out = term if out is None else out + term
        if out is None:
            out = x.new_zeros(*x.shape[:2], self.width)
        if hasattr(self, "gain"):
            out = out * self.gain
        if hasattr(self, "bias"):
            out = out + self.bias
        heads = self._heads(out).transpose(1, 2)
        return heads * self.temperature[:, None, None] if hasattr(self, "temperature") else heads

    def _from_source(self, x: Tensor, read: Mapping[str, Tensor]) -> Tensor | None:
        if self.source == "zero":
            return None
        if self.source == "shuffle":
            out = self.fixed_shuffle(x) if self.fixed_shuffle else shuffled(x, *shuffle_table(self.order))
        elif "free" in read:
            out = torch.cat([read["weight"], read["free"]], dim=-1)
        else:
            out = read.get("weight", x)
        if hasattr(self, "core"):
            out = out + torch.einsum("bthi,hoi->btho", self._heads(out), self.core).flatten(2)
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, self.width // self.num_heads)

    def _up(self, name: str, x: Tensor) -> Tensor:
        out: Tensor = self.ups[name](x) if name in self.ups else F.linear(x, getattr(self, f"{name}_up"))
        return out


@torch.no_grad()
def shuffle_table(order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a signed permutation says: which channel goes where, the way back, and the signs."""
    places = order.abs().long() - 1
    return places, places.argsort(), order.sign()


def shuffled(x: Tensor, places: Tensor, back: Tensor, signs: Tensor) -> Tensor:
    out: Tensor = _Shuffled.apply(x, places, back, signs)  # type: ignore[no-untyped-call]
    return out


class _Shuffled(torch.autograd.Function):
    """Its gradient is fetched from where each channel went; autograd would add it up, as if channels could meet."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, back: Tensor, signs: Tensor) -> Tensor:
        ctx.save_for_backward(back, signs)
        return x[..., places] * signs.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        back, signs = ctx.saved_tensors
        (gradient,) = gradients
        return (gradient * signs.to(gradient.dtype))[..., back], None, None, None
