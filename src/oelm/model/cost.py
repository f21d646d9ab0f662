"""What a training step costs, computed from the model's shape: FLOPs by part, parameters, optimiser memory.

A matrix product of (tokens, in) × (in, out) is 2·tokens·in·out FLOPs; training does it three times: forward, for the
gradient of the input, and for the gradient of the weight. Freezing a weight saves the third. Causal attention is
counted at the half of the square that it needs. Norms, activations and the softmax are not matrix work and not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from oelm import variants
from oelm.config import Model
from oelm.model.projection import shapes
from oelm.specs import Side

ADAM_BYTES = 8  # two fp32 moments per trained parameter


@dataclass(frozen=True)
class Part:
    """One kind of matrix product, summed over the layers."""

    name: str
    forward: int
    input_gradient: int
    weight_gradient: int

    @property
    def total(self) -> int:
        return self.forward + self.input_gradient + self.weight_gradient


@dataclass(frozen=True)
class Cost:
    parts: tuple[Part, ...]
    parameters: int
    frozen: int
    updated: float  # parameters per step, in the mean

    @property
    def flops(self) -> int:
        return sum(part.total for part in self.parts)

    @property
    def trainable(self) -> int:
        return self.parameters - self.frozen

    @property
    def optimizer_bytes(self) -> int:
        return ADAM_BYTES * self.trainable


def step_cost(shape: Model, batch_size: int) -> Cost:
    """The cost of one step on batch_size sequences."""
    d, layers, tokens = shape.d_model, shape.num_layers, batch_size * shape.seq_len
    variant = variants.parse(shape.model_type)

    def product(name: str, weights: int, updated: float) -> Part:
        return Part(name, 2 * tokens * weights, 2 * tokens * weights, round(2 * tokens * updated))

    def projection(name: str) -> Part:
        read = [each for each in _query_key(shape) if each.name == name and len(each.size) > 1]
        updated = sum(each.count * each.updates for each in read)
        return product(f"{name.upper()} projection", sum(each.count for each in read), updated)

    scores = tokens * shape.seq_len * (d // variant.q.thin) * layers
    values = tokens * shape.seq_len * d * layers
    always = {"V projection": d * d, "output projection": d * d, "feed-forward": 2 * d * shape.d_ff}
    parts = (
        projection("q"),
        projection("k"),
        Part("attention", scores + values, 2 * (scores + values), 0),
        *(product(name, layers * weights, layers * weights) for name, weights in always.items()),
        product("LM head", d * shape.vocab_size, d * shape.vocab_size),
    )
    parameters, sides = count_parameters(shape), list(_query_key(shape))
    frozen = sum(each.count for each in sides if not each.updates)
    resting = sum(each.count * (1 - each.updates) for each in sides)
    return Cost(parts, parameters, frozen, parameters - resting)


def count_parameters(shape: Model) -> int:
    d = shape.d_model
    block = 2 * d * d + 2 * d * shape.d_ff + shape.d_ff + d + 4 * d
    positions = shape.seq_len * d if shape.positions == "learned" else 0
    sides = sum(each.count for each in _query_key(shape))
    return shape.vocab_size * d + positions + shape.num_layers * block + sides + 2 * d


def trained_share(shape: Model) -> float:
    """The scalars between the normalised stream and the attention logits that train at any time, as a share of those
    of a plain Q and K: 2 · layers · d_model²."""
    trained = sum(each.count for each in _query_key(shape) if not each.ruled or each.side.when.ever)
    return trained / (2 * shape.num_layers * shape.d_model**2)


def ever_trained(shape: Model) -> int:
    """How many parameters train at any time."""
    never = sum(each.count for each in _query_key(shape) if each.ruled and not each.side.when.ever)
    return count_parameters(shape) - never


def shrunk_feed_forward(shape: Model) -> int | None:
    """The d_ff at which a baseline has as many parameters as this variant ever trains, or hardly fewer: a control.

    None where the variant trains no fewer than the baseline.
    """
    surplus = count_parameters(replace(shape, model_type="baseline")) - ever_trained(shape)
    each = shape.num_layers * (2 * shape.d_model + 1)
    width = shape.d_ff - math.ceil(surplus / each)
    return width if surplus > 0 and width > 0 else None


@dataclass(frozen=True)
class _Tensor:
    """A tensor of Q or K in one layer."""

    name: str  # of the side
    side: Side
    ruled: bool  # whether it is what the variant says of when it trains
    size: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.size)

    @property
    def updates(self) -> float:
        """How many there are of it in a step, in the mean, as it trains at birth."""
        return self.side.when.updates if self.ruled else 1.0


def _query_key(shape: Model) -> Iterator[_Tensor]:
    variant = variants.parse(shape.model_type)
    for layer in range(shape.num_layers):
        for name, side in variant.in_layer(layer, shape.num_layers).items():
            for tensor, size in shapes(side, shape).items():
                yield _Tensor(name, side, tensor == side.tensor, size)


@dataclass(frozen=True)
class Floor:
    """The least seconds that a step can take on a device, its products and its bytes one after the other."""

    products: float
    bytes: float

    @property
    def total(self) -> float:
        return self.products + self.bytes


def floor(shape: Model, batch_size: int, flops_per_second: float, bytes_per_second: float, gpu: bool) -> Floor:
    """The floor of a step, in bf16 on a GPU or in fp32 on a CPU, from a device's measured rates.

    The bytes are those that are too many for any cache: of each parameter that is updated the weight and two moments,
    read and written in fp32, the gradient, written once and read for its norm and for the update, and on a GPU the copy
    in bf16 that is written, and the logits, written once and read for two gradients.
    """
    cost = step_cost(shape, batch_size)
    each = 2 * 12 + 3 * 2 + 2 if gpu else 2 * 12 + 3 * 4
    logits = 3 * 2 * batch_size * shape.seq_len * shape.vocab_size if gpu else 0
    return Floor(cost.flops / flops_per_second, (each * cost.updated + logits) / bytes_per_second)
