"""Q's and K's tensors by their logical names: where they stand, how they are born, and which a schedule rules."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import torch
from torch import Tensor

from oelm import variants
from oelm.config import Model
from oelm.model.projection import MATRICES, draw
from oelm.specs import When


@dataclass(frozen=True)
class Place:
    """Where a tensor of Q or K stands."""

    layer: int
    side: str
    tensor: str

    def __str__(self) -> str:
        return f"blocks.{self.layer}.attention.{self.side}.{self.tensor}"


def place_of(name: str) -> Place | None:
    """The place of a tensor of Q or K, from its logical name; None for any other."""
    match = re.fullmatch(r"blocks\.(\d+)\.attention\.([qk])\.(\w+)", name)
    return Place(int(match[1]), match[2], match[3]) if match else None


def ruled(shape: Model) -> dict[str, When]:
    """The matrices of which the variant says when they train, by logical name."""
    variant, layers = variants.parse(shape.model_type), shape.num_layers
    return {
        str(Place(layer, name, side.tensor)): side.when
        for layer in range(layers)
        for name, side in variant.in_layer(layer, layers).items()
        if side.tensor
    }


def frozen_at_birth(shape: Model) -> set[str]:
    return {name for name, when in ruled(shape).items() if not when.at_birth}


def birth(shape: Model, seed: int, name: str) -> Tensor:
    """A tensor of Q or K, by its logical name, as it is before anything has trained it."""
    place = place_of(name)
    assert place
    side = variants.parse(shape.model_type).in_layer(place.layer, shape.num_layers)[place.side]
    drawn_for = "q" if side.tied and place.tensor in MATRICES else place.side
    return draw(side, shape, place.tensor, lambda tensor: generator(seed, str(Place(place.layer, drawn_for, tensor))))


def generator(seed: int, name: str) -> torch.Generator:
    """A generator of its own for each tensor, seeded by the run's seed and the tensor's logical name."""
    return torch.Generator().manual_seed(
        int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1
    )
