"""Causal self-attention over queries, keys and values, and the positions that are rotated into the first two."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm import variants
from oelm.config import Model
from oelm.model.dropout import Dropout
from oelm.model.projection import Projection
from oelm.specs import Side, When

VALUES = Side("normal", When("trained"))


class Attention(nn.Module):
    """Q and K as the variant has them in this layer; V and O, trained matrices without biases as in the study."""

    def __init__(self, shape: Model, layer: int, dropout: Dropout) -> None:
        super().__init__()
        self.dropout = dropout
        of_variant = variants.parse(shape.model_type).in_layer(layer, shape.num_layers)
        self.q = Projection(of_variant["q"], shape)
        self.k = Projection(of_variant["k"], shape)
        self.v = Projection(VALUES, shape)
        self.o = nn.Linear(shape.d_model, shape.d_model, bias=False)
        self.stacked: nn.Module | None = None  # an engine may compute what reads the same input as one product

    @property
    def sides(self) -> dict[str, Projection]:
        return {"q": self.q, "k": self.k, "v": self.v}

    def forward(self, x: Tensor, rotation: Tensor | None, rows: Tensor | None) -> Tensor:
        q, k, v = self.project(x, rotation)
        if self.dropout.active:  # the fused kernel draws masks of its own, which depend on how the batch is cut
            heads = self.dropout(causal_scores(q, k).softmax(-1), rows).to(v.dtype) @ v
        else:
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        merged: Tensor = self.o(heads.transpose(1, 2).flatten(2))
        return merged

    def project(self, x: Tensor, rotation: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, time, d_model) → q, k, v of (batch, heads, time, width of a head), positions rotated in."""
        sides = self.sides.values()
        inputs = [side.mixed(x) for side in sides]
        read = self.stacked(inputs) if self.stacked else [side.read(i) for side, i in zip(sides, inputs, strict=True)]
        q, k, v = (side.finished(*made) for side, *made in zip(sides, inputs, read, strict=True))
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return q, k, v

    def pattern(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Which tokens look at which, as probabilities: (batch, heads, time, time)."""
        q, k, _ = self.project(x, rotation)
        return causal_scores(q, k).softmax(-1)


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
