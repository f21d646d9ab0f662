"""Causal self-attention: how Q and K are born and frozen, beside V and O, which always train."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm import variants
from oelm.config import Model
from oelm.model.dropout import Dropout


class Attention(nn.Module):
    """Q, K, V and O apart, matrices (where the variant has one) without biases, as in the original study."""

    def __init__(self, shape: Model, dropout: Dropout) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.dropout = dropout
        variant = variants.parse(shape.model_type)
        self.q = _projection(variant.q, shape.d_model)
        self.k = _projection(variant.k, shape.d_model)
        self.v = nn.Linear(shape.d_model, shape.d_model, bias=False)
        self.o = nn.Linear(shape.d_model, shape.d_model, bias=False)
        self.stacked: nn.Module | None = None  # an engine may compute several sides as one product

    def forward(self, x: Tensor, rotation: Tensor | None, rows: Tensor | None) -> Tensor:
        q, k, v = self.project(x, rotation)
        if self.dropout.active:  # the fused kernel draws masks of its own, which depend on how the batch is cut
            heads = self.dropout(causal_scores(q, k).softmax(-1), rows).to(v.dtype) @ v
        else:
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        merged: Tensor = self.o(heads.transpose(1, 2).flatten(2))
        return merged

    def project(self, x: Tensor, rotation: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, time, d_model) → q, k, v of (batch, heads, time, d_head), positions rotated in."""
        sides = {} if self.stacked is None else self.stacked(x)
        sides |= {name: self.get_submodule(name)(x) for name in "qkv" if name not in sides}
        q, k, v = (sides[name].unflatten(2, (self.num_heads, -1)).transpose(1, 2) for name in "qkv")
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return q, k, v

    def entropy(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Mean entropy (nats) of the attention distributions on x: how widely this layer looks."""
        q, k, _ = self.project(x, rotation)
        entropies: Tensor = torch.special.entr(causal_scores(q, k).softmax(-1)).sum(-1)
        return entropies.mean()


class Shuffle(nn.Module):
    """A signed permutation of the channels: an orthogonal projection that needs no product."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.order = nn.Parameter(torch.arange(1.0, d_model + 1))

    def forward(self, x: Tensor) -> Tensor:
        return shuffled(x, *self.table())

    @torch.no_grad()
    def table(self) -> tuple[Tensor, Tensor, Tensor]:
        """Which channel goes where, the way back, and the signs."""
        places = self.order.abs().long() - 1
        return places, places.argsort(), self.order.sign()


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


def _projection(side: variants.Side, d_model: int) -> nn.Module:
    if side.multiplies:
        return nn.Linear(d_model, d_model, bias=False)
    return Shuffle(d_model) if side.source == "shuffle" else nn.Identity()


def causal_scores(q: Tensor, k: Tensor) -> Tensor:
    """The attention logits, in fp32, with -inf where a query would look ahead: (batch, heads, time, time)."""
    scores = (q @ k.transpose(2, 3)).float() / math.sqrt(q.shape[-1])
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return scores.masked_fill(~causal, float("-inf"))


def rotation_table(seq_len: int, d_head: int, base: float = 10_000.0) -> Tensor:
    """cos and sin of every position's rotation angles: (2, seq_len, d_head / 2)."""
    frequencies = base ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float64), frequencies)
    return torch.stack([angles.cos(), angles.sin()]).float()


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotary positions: channel i and channel i + d_head / 2 turn as one plane."""
    cos, sin = rotation[:, : x.shape[-2]].to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
