"""What a variant is: for Q and for K a source and parts, and how that is written.

The source says where the matrix comes from; the parts, when and where it is frozen and what corrects it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SOURCES = {
    "normal": "Gaussian N(0, 0.02), GPT-2's own initialisation",
    "headwise": "orthogonal within each head: the QR factor of a d_model × d_head Gaussian per head",
    "global": "orthogonal as a whole: the QR factor of one d_model × d_model Gaussian",
    "matched": "Gaussian N(0, 1/d_model): the scale of the orthogonal ones without their orthogonality",
    "shuffle": "a signed permutation of the channels: orthogonal, and no product to compute",
    "identity": "nothing at all: each head reads its slice of the normalised stream",
    "zero": "no matrix: the corrections are all there is",
}

# What a source leaves in the model: a matrix, unless it stands here.
TENSORS = {"shuffle": "order", "identity": None, "zero": None}


def tensor_of(source: str) -> str | None:
    """The name of the tensor that the model keeps for a source."""
    return TENSORS.get(source, "weight")


@dataclass(frozen=True)
class When:
    """When a matrix trains: `kind` is frozen, trained, freeze, thaw or every; the numbers are what stands in brackets.

    Two numbers go through the layers: the first layer changes at the first, the last layer at the second.
    """

    kind: str = "frozen"
    number: float = 0
    last: float | None = None
    percent: bool = False

    @property
    def at_birth(self) -> bool:
        """Whether it trains in the first step."""
        return self.kind in ("trained", "freeze", "every")

    @property
    def updates(self) -> float:
        """How many of them there are in a step, in the mean, as long as it is as at birth."""
        return 1 / self.number if self.kind == "every" else float(self.at_birth)

    @property
    def ever(self) -> bool:
        """Whether it trains at any time."""
        return self.kind != "frozen"

    def at(self, depth: float) -> When:
        """For a layer at some depth, from 0 (the first) to 1 (the last)."""
        if self.last is None:
            return self
        return dataclasses.replace(self, number=self.number + depth * (self.last - self.number), last=None)

    def change(self, max_steps: int) -> int | None:
        """The step from which on it is frozen or trained, if that ever changes; for one layer."""
        if self.kind not in ("freeze", "thaw"):
            return None
        return max(1, round(self.number / 100 * max_steps)) if self.percent else round(self.number)

    def trains(self, step: int, max_steps: int) -> bool:
        """Whether it belongs to what is optimised in a step."""
        change = self.change(max_steps)
        return self.at_birth if change is None or step < change else not self.at_birth

    def rests(self, step: int) -> bool:
        """Whether it is left out in a step, although it is trained."""
        return self.kind == "every" and step % round(self.number) != 0

    def __str__(self) -> str:
        if self.kind in ("frozen", "trained"):
            return self.kind
        numbers = [self.number] if self.last is None else [self.number, self.last]
        return f"{self.kind}({'-'.join(f'{n:.0f}' + ('%' if self.percent else '') for n in numbers)})"


@dataclass(frozen=True)
class Share:
    """So many percent of the model's width."""

    percent: float

    def of(self, width: int) -> int:
        return max(1, round(self.percent / 100 * width))

    def __str__(self) -> str:
        return f"{self.percent:g}%"


Rank = int | Share  # of a correction


@dataclass(frozen=True)
class Side:
    """What happens to one of the two projections. The fields after `when` are the parts of the same names."""

    source: str
    when: When = When()
    layers: tuple[int, int] | None = None
    heads: int = 100
    thin: int = 1
    tied: bool = False
    shift: int = 0
    core: bool = False
    lowrank: Rank = 0
    residual: Rank = 0
    gain: float = 0.0  # where it begins; 0: there is none
    bias: bool = False
    temperature: bool = False
    rate: float = 1.0
    vectors: float = 1.0

    @property
    def trained(self) -> bool:
        """Whether its matrix trains from birth."""
        return self.when.at_birth

    @property
    def tensor(self) -> str | None:
        return tensor_of(self.source)

    @property
    def multiplies(self) -> bool:
        """Whether it is a matrix product."""
        return self.tensor == "weight"

    @property
    def is_nothing(self) -> bool:
        """Whether it is zero whatever it reads."""
        return self.source == "zero" and not (self.lowrank or self.residual or self.bias)

    @property
    def corrected(self) -> bool:
        """Whether anything besides the matrix trains in it."""
        return any(getattr(self, name) != PLAIN[name] for name in CORRECTIONS)

    @property
    def has_vectors(self) -> bool:
        """Whether a factor or an addend per channel or head trains in it."""
        return any(getattr(self, name) for name in VECTORS)

    def rate_of(self, tensor: str) -> float:
        """The learning rate of one of its tensors, as a multiple of the run's."""
        return self.rate * (self.vectors if tensor.rstrip("0123456789") in VECTORS else 1.0)

    def rank(self, correction: str, width: int) -> int:
        """How wide its lowrank or residual is in a model of some width; 0 without one."""
        rank: Rank = getattr(self, correction)
        return rank.of(width) if isinstance(rank, Share) else rank

    def in_layer(self, layer: int, layers: int) -> Side:
        """The same side as it is in one of a model's layers: outside of `layers`, it trains."""
        if self.layers and not self.layers[0] <= layer <= self.layers[1]:
            return dataclasses.replace(self, when=When("trained"), heads=100, layers=None)
        return dataclasses.replace(self, when=self.when.at(layer / max(1, layers - 1)), layers=None)

    def in_model(self, width: int, layers: int) -> Side:
        """The same side with what depends on the model's shape written out, so that equal ones are written alike."""
        lowrank, residual = (self.rank(name, width) for name in ("lowrank", "residual"))
        span = None if self.layers == (0, layers - 1) else self.layers
        return dataclasses.replace(self, lowrank=lowrank, residual=residual, layers=span)

    def __str__(self) -> str:
        return "+".join(_written(self))


@dataclass(frozen=True)
class Variant:
    q: Side
    k: Side

    @property
    def sides(self) -> dict[str, Side]:
        return {"q": self.q, "k": self.k}

    def in_layer(self, layer: int, layers: int) -> dict[str, Side]:
        """Both sides as they are in one of a model's layers."""
        return {name: side.in_layer(layer, layers) for name, side in self.sides.items()}

    def in_model(self, width: int, layers: int) -> Variant:
        return Variant(self.q.in_model(width, layers), self.k.in_model(width, layers))

    def __str__(self) -> str:
        """In one way for each variant: what both sides have stands first."""
        q, k = list(_written(self.q)), list(_written(self.k))
        if q[0] != k[0]:
            return f"q={self.q},k={self.k}"
        both = [piece for piece in q if piece in k]
        own = {name: [p for p in pieces if p not in both] for name, pieces in (("q", q), ("k", k))}
        return ",".join(["+".join(both), *("+".join([name, *pieces]) for name, pieces in own.items() if pieces)])


VECTORS = ("shift", "gain", "bias", "temperature")
CORRECTIONS = ("shift", "core", "lowrank", "residual", "gain", "bias", "temperature")
# What a side without any part has.
PLAIN: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Side) if f.default is not dataclasses.MISSING}


def _written(side: Side) -> Iterator[str]:
    """A side as its source and parts, in the order of the fields."""
    yield side.source
    for name, plain in PLAIN.items():
        value = getattr(side, name)
        if value == plain:
            continue
        if name == "when":
            yield str(value)
        elif value is True or (name in ("shift", "gain") and value == 1):
            yield name
        elif name == "layers":
            yield f"layers({value[0]}-{value[1]})" if value[0] < value[1] else f"layers({value[0]})"
        else:
            number = f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
            yield f"{name}({number}{'%' if name == 'heads' else ''})"
