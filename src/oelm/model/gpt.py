"""The model, read top to bottom: feed-forward, block, GPT; then how its weights are born.

The parameter names here are the logical model's: what a checkpoint holds and what variants share tensor by tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Set

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm import variants
from oelm.config import Model
from oelm.model.attention import Attention, rotation_table
from oelm.model.dropout import Dropout
from oelm.model.head import mean_loss
from oelm.model.orthogonal import INIT_STD
from oelm.model.projection import MATRICES
from oelm.model.querykey import birth, frozen_at_birth, generator, place_of, ruled


class FeedForward(nn.Module):
    def __init__(self, shape: Model) -> None:
        super().__init__()
        self.up = nn.Linear(shape.d_model, shape.d_ff)
        self.down = nn.Linear(shape.d_ff, shape.d_model)
        self.fused_up: nn.Module | None = None  # an engine may replace `up` and the GELU by one module

    def forward(self, x: Tensor) -> Tensor:
        activated = F.gelu(self.up(x)) if self.fused_up is None else self.fused_up(x)
        out: Tensor = self.down(activated)
        return out


class AddNorm(nn.LayerNorm):
    """Adds to the stream what the last layer has to say, and normalises a copy of it for the next."""

    def forward(self, stream: Tensor, said: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        if said is not None:
            stream = stream + said
        return stream, super().forward(stream)


class Block(nn.Module):
    """Attention, then feed-forward, each on a normalised copy of the stream; the latter's word is yet to be added."""

    def __init__(self, shape: Model, seed: int, layer: int) -> None:
        super().__init__()
        place = f"blocks.{layer}"
        self.norm1 = AddNorm(shape.d_model)
        self.attention = Attention(shape, layer, Dropout(shape.dropout, seed, f"{place}.attention"))
        self.norm2 = AddNorm(shape.d_model)
        self.mlp = FeedForward(shape)
        self.dropout1 = Dropout(shape.dropout, seed, f"{place}.1")
        self.dropout2 = Dropout(shape.dropout, seed, f"{place}.2")

    def forward(
        self, stream: Tensor, said: Tensor | None, rotation: Tensor | None, rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        stream, x = self.norm1(stream, said)
        stream, x = self.norm2(stream, self.dropout1(self.attention(x, rotation, rows), rows))
        return stream, self.dropout2(self.mlp(x), rows)


class GPT(nn.Module):
    """A GPT-2-like decoder whose output layer is its token embedding."""

    rotation: Tensor | None

    def __init__(self, shape: Model, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab_size, shape.d_model)
        rope = shape.positions == "rope"
        self.positions = None if rope else nn.Embedding(shape.seq_len, shape.d_model)
        width = shape.d_model // shape.num_heads // variants.parse(shape.model_type).q.thin
        table = rotation_table(shape.seq_len, width) if rope else None
        self.register_buffer("rotation", table, persistent=False)
        self.dropout = Dropout(shape.dropout, seed, "embedding")
        self.blocks = nn.ModuleList(Block(shape, seed, i) for i in range(shape.num_layers))
        self.norm = AddNorm(shape.d_model)
        self._initialise(seed)

    def forward(self, tokens: Tensor, targets: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """Logits of (batch, time, vocabulary); with targets, their mean cross-entropy instead.

        rows: the number of each sequence in the run, (batch,); needed only where dropout is active.
        """
        hidden = self.trunk(self.tokens(tokens), rows)
        if targets is None:
            return F.linear(hidden, self.tokens.weight)
        return mean_loss(hidden.flatten(0, 1), self.tokens.weight, targets.flatten())

    def trunk(self, embedded: Tensor, rows: Tensor | None = None) -> Tensor:
        """From token embeddings to what the output layer reads, both (batch, time, d_model)."""
        stream, said = self.placed(embedded, rows), None
        for block in self.blocks:
            stream, said = block(stream, said, self.rotation, rows)
        normed: Tensor = self.norm(stream, said)[1]
        return normed

    def placed(self, embedded: Tensor, rows: Tensor | None = None) -> Tensor:
        """The start of the residual stream: embeddings that know their place."""
        if self.positions is not None:
            embedded = embedded + self.positions.weight[: embedded.shape[1]]
        stream: Tensor = self.dropout(embedded, rows)
        return stream

    @torch.no_grad()
    def patterns(self, tokens: Tensor) -> Iterator[Tensor]:
        """What attention looks at in each layer, one after the other: (batch, heads, time, time)."""
        stream, said = self.placed(self.tokens(tokens)), None
        for block in self.blocks:
            assert isinstance(block, Block)
            yield block.attention.pattern(block.norm1(stream, said)[1], self.rotation)
            stream, said = block(stream, said, self.rotation, None)

    def matrices(self) -> dict[str, nn.Parameter]:
        """What the sources have left of Q and K, without their corrections, by logical name."""
        return {name: p for name, p in self.named_parameters() if (at := place_of(name)) and at.tensor in MATRICES}

    def set_frozen(self, names: Set[str]) -> list[str]:
        """Freezes these of the matrices that a schedule rules, thaws the others; the names of those that changed."""
        changed = [n for n in ruled(self.shape) if self.get_parameter(n).requires_grad == (n in names)]
        for name in changed:
            self.get_parameter(name).requires_grad_(name not in names)
        return changed

    def frozen(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if not p.requires_grad}

    @torch.no_grad()
    def _initialise(self, seed: int) -> None:
        """Every tensor from a generator of its own, so that variants share all they have in common, bit for bit."""
        shape, frozen = self.shape, frozen_at_birth(self.shape)
        for name, parameter in self.named_parameters():
            if place_of(name):
                parameter.copy_(birth(shape, seed, name))
                parameter.requires_grad_(name not in frozen)
            elif parameter.ndim == 1:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
            else:
                std = INIT_STD
                if name.endswith(("attention.o.weight", "mlp.down.weight")):
                    std /= math.sqrt(2 * shape.num_layers)  # GPT-2: what adds to the stream starts small
                parameter.copy_(torch.randn(parameter.shape, generator=generator(seed, name)) * std)
