"""What a training step costs, computed from the model's shape: FLOPs by part, parameters, optimiser memory.

A matrix product of (tokens, in) × (in, out) is 2·tokens·in·out FLOPs; training does it three times: forward, for the
gradient of the input, and for the gradient of the weight. Freezing a weight saves the third. Causal attention is
counted at the half of the square that it needs. Norms, activations and the softmax are not matrix work and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from oelm import variants
from oelm.config import Model

ADAM_BYTES = 8  # two fp32 moments per trained parameter
# Per trained parameter and step: weight and moments read and written in fp32, the bf16 gradient written once and read
# for its norm and for the update, the bf16 copy written.
OPTIMIZER_TRAFFIC = 2 * 12 + 3 * 2 + 2


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

    def product(name: str, width_in: int, width_out: int, count: int, trained: bool = True) -> Part:
        flops = 2 * tokens * width_in * width_out * count
        return Part(name, flops, flops, flops if trained else 0)

    def projection(name: str, side: variants.Side) -> Part:
        return product(name, d, d, layers if side.multiplies else 0, side.trained)

    scores_and_values = 2 * (2 * tokens * shape.seq_len * d // 2) * layers
    parts = (
        projection("Q projection", variant.q),
        projection("K projection", variant.k),
        product("V projection", d, d, layers),
        Part("attention", scores_and_values, 2 * scores_and_values, 0),
        product("output projection", d, d, layers),
        product("feed-forward", d, shape.d_ff, 2 * layers),
        product("LM head", d, shape.vocab_size, 1),
    )
    frozen = layers * sum(_size(side, d) for side in (variant.q, variant.k) if not side.trained)
    return Cost(parts, count_parameters(shape), frozen)


def count_parameters(shape: Model) -> int:
    d, variant = shape.d_model, variants.parse(shape.model_type)
    sides = _size(variant.q, d) + _size(variant.k, d)
    block = sides + 2 * d * d + 2 * d * shape.d_ff + shape.d_ff + d + 4 * d
    positions = shape.seq_len * d if shape.positions == "learned" else 0
    return shape.vocab_size * d + positions + shape.num_layers * block + 2 * d


def _size(side: variants.Side, d_model: int) -> int:
    return {"weight": d_model**2, "order": d_model, None: 0}[side.tensor]


@dataclass(frozen=True)
class Floor:
    """The least seconds that a step can take on a device, its products and its bytes one after the other."""

    products: float
    bytes: float

    @property
    def total(self) -> float:
        return self.products + self.bytes


def floor(shape: Model, batch_size: int, flops_per_second: float, bytes_per_second: float) -> Floor:
    """The floor of a bf16 step, from a device's measured rates.

    The bytes are those that are too many for any cache: AdamW's, and those of the logits, which are written, read and
    overwritten by the loss, and read for two gradients.
    """
    cost = step_cost(shape, batch_size)
    logits = 5 * 2 * batch_size * shape.seq_len * shape.vocab_size
    moved = OPTIMIZER_TRAFFIC * cost.trainable + logits
    return Floor(cost.flops / flops_per_second, moved / bytes_per_second)
