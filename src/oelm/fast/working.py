"""The working layout: what a fast step computes with, derived from the logical model and never saved.

The logical model's weights stay where they are in name and shape; underneath, they become views into flat buffers.
Beside them lies a copy in the precision of the products, in which Q, K and V are one matrix and the vocabulary is
padded to what matrix units like. `refresh` makes the copy anew when the weights have been replaced.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.config import RunConfig
from oelm.fast.adamw import Flat, Unit
from oelm.fast.loss import head_loss, head_score
from oelm.fast.norm import FusedAddNorm
from oelm.fast.products import FixedShuffle, Job, Product, Reader, Stacked, Up, WeightGradients
from oelm.model.attention import Attention
from oelm.model.gpt import GPT, AddNorm, Block
from oelm.model.projection import Projection

MULTIPLE = 64  # rows of a matrix that several share, and of the vocabulary: what matrix units like
KINDS = 64  # shapes and kinds of block that a process may compile, rather than fall back to eager ones without a word


@dataclass(frozen=True)
class _Matrix:
    """A unit that is multiplied with: where it stands in its product's weight."""

    unit: int
    product: Product
    rows: slice


class Working:
    """A model laid out for speed, with the gradient of a batch and the score of one."""

    def __init__(self, model: GPT, config: RunConfig, precision: torch.dtype) -> None:
        self.precision = precision
        self.vocab_size = config.vocab_size
        self.model = copy.deepcopy(model)
        self.flat = Flat(_units(model, config), precision)
        self.weight_gradients = WeightGradients(self.flat.weights.device)
        self._numbers = {unit.name: i for i, unit in enumerate(self.flat.units)}
        self._table, *_ = self.flat.by_unit(self.flat.weights)
        self._head = self.flat.copies[0]
        self._frozen_rows: list[tuple[Tensor, nn.Parameter]] = []  # of stacks, and where they come from
        self._shuffles: list[tuple[FixedShuffle, nn.Parameter]] = []
        self._matrices: list[_Matrix] = []
        self._lay_out(model)
        self._products = [module for module in self.model.modules() if isinstance(module, Product)]
        self._leaves = self._make_leaves()
        self._adds_up = config.accumulation > 1
        whole = torch.float32 if self._adds_up else precision  # what is added up is not rounded in between
        outs = [torch.zeros_like(t, dtype=whole) for t in self.flat.by_unit(self.flat.weights)[1:]]
        self.gradient: list[Tensor] = [torch.zeros_like(self._table), *outs]
        self.refresh()

    def compile(self, **options: Any) -> None:
        """Has the blocks compiled when they first run: once for all layers, since they are alike."""
        from torch._dynamo import config as tracing  # here, for the import takes a second
        from torch._functorch import config as differentiating

        tracing.recompile_limit = max(KINDS, tracing.recompile_limit)
        # Or every process would differentiate anew what has gradients of its own. The cache knows it by what was traced
        # of both directions, so it notices a changed one; the operators beneath keep nothing to themselves.
        differentiating.autograd_cache_allow_custom_autograd_functions = True
        for block in self.model.blocks:
            block.compile(dynamic=False, **options)

    @torch.no_grad()
    def refresh(self) -> None:
        """Makes the working copies anew from the logical weights."""
        for rows, weight in self._frozen_rows:
            rows.copy_(weight)
        for ours, order in self._shuffles:
            ours.refresh(order)
        self.flat.refresh()

    def gradients(
        self,
        inputs: Tensor,
        targets: Tensor,
        rows: Tensor,
        scale: float,
        micro: int = 0,
        resting: Set[str] = frozenset(),
    ) -> Tensor:
        """The summed loss of micro-batch number `micro`; scale × its gradient is then in `gradient`, a tensor per unit.

        From the second micro-batch on it is added to what is there. Matrices that rest get none.
        """
        add = micro > 0
        for product in self._products:
            product.expect(inputs.shape)
        embedded = F.embedding(inputs, self._table).requires_grad_()
        hidden = self._hidden(embedded, rows)
        of_table = self.gradient[0]
        loss, by_hidden = head_loss(
            hidden.detach().flatten(0, 1), self._head, targets.flatten(), self.vocab_size, scale, of_table, add
        )
        wanted = [embedded, *(product.tap for product in self._products), *self._leaves.values()]
        by_embedded, *others = torch.autograd.grad(hidden, wanted, by_hidden.view_as(hidden))  # type: ignore[arg-type]
        of_table.index_add_(0, inputs.flatten(), by_embedded.flatten(0, 1))
        by_product = dict(zip(self._products, others, strict=False))
        jobs = [
            self._job(m, by_product[m.product]) for m in self._matrices if self.flat.units[m.unit].name not in resting
        ]
        self.weight_gradients(jobs, (micro, frozenset(resting)), add)
        for unit, gradient in zip(self._leaves, others[len(self._products) :], strict=True):
            if not self._adds_up:
                self.gradient[unit] = gradient.contiguous()  # as the optimiser reads it
            elif add:
                self.gradient[unit].add_(gradient)
            else:
                self.gradient[unit].copy_(gradient)
        self._let_go()
        return loss

    @torch.no_grad()
    def score(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The summed cross-entropy of a batch."""
        hidden = self._hidden(F.embedding(inputs, self._table), None)
        self._let_go()
        return head_score(hidden.flatten(0, 1), self._head, targets.flatten(), self.vocab_size)

    def _hidden(self, embedded: Tensor, rows: Tensor | None) -> Tensor:
        with torch.autocast(embedded.device.type, self.precision, enabled=self.precision != torch.float32):
            return self.model.trunk(embedded, rows).to(self.precision)

    def _job(self, matrix: _Matrix, gradient: Tensor) -> Job:
        assert matrix.product.x is not None
        return Job(gradient.flatten(0, 1)[:, matrix.rows], matrix.product.x.flatten(0, 1), self.gradient[matrix.unit])

    def _let_go(self) -> None:
        for product in self._products:
            product.x = None

    def _lay_out(self, model: GPT) -> None:
        """Gives the working model its products and norms."""
        del self.model.tokens  # looked up and multiplied outside the trunk
        for layer, block in enumerate(self.model.blocks):
            assert isinstance(block, Block)
            place = f"blocks.{layer}"
            for name, side in block.attention.sides.items():
                self._lay_out_side(f"{place}.attention.{name}", model, side)
            self._stack(f"{place}.attention", model, block.attention)
            block.attention.o = self._product(f"{place}.attention.o.weight")  # type: ignore[assignment]
            block.mlp.fused_up = self._product(f"{place}.mlp.up.weight", Up)
            del block.mlp.up
            block.mlp.down = self._product(f"{place}.mlp.down.weight")  # type: ignore[assignment]
        for place, module in list(self.model.named_modules()):
            if isinstance(module, AddNorm):
                self.model.set_submodule(place, FusedAddNorm(module, self.precision))

    def _product(self, name: str, kind: type[Product] = Product) -> Product:
        """A trained matrix as a product of its own."""
        unit, bias = self._numbers[name], self._numbers.get(f"{name.removesuffix('.weight')}.bias")
        product = kind(self.flat.copies[unit], None if bias is None else nn.Parameter(self.flat.copies[bias]))
        self._matrices.append(_Matrix(unit, product, slice(None)))
        return product

    def _lay_out_side(self, place: str, model: GPT, side: Projection) -> None:
        """Gives a side of attention what it computes with after its input has been read."""
        for correction in side.corrections:
            side.ups[correction] = self._product(f"{place}.{correction}_up")
            delattr(side, f"{correction}_up")
        if side.source == "shuffle":
            order = model.get_parameter(f"{place}.order")
            side.fixed_shuffle = FixedShuffle(order)
            self._shuffles.append((side.fixed_shuffle, order))

    def _stack(self, place: str, model: GPT, attention: Attention) -> None:
        """Makes all matrices of a layer's Q, K and V that read the same input one product."""
        names, sides = list(attention.sides), list(attention.sides.values())
        stacks = []
        for inputs in _alike(sides):
            # Those of full width first: their heads begin where matrix units like it.
            found = [(number, reader) for number in inputs for reader in sides[number].readers]
            found.sort(key=lambda each: each[1].endswith("_down"))
            weights = [model.get_parameter(f"{place}.{names[number]}.{reader}") for number, reader in found]
            if weights:
                product = self._stacked_product(
                    [f"{place}.{names[number]}.{reader}" for number, reader in found], weights
                )
                rows = map(len, weights)
                stacks.append((product, [Reader(*each, count) for each, count in zip(found, rows, strict=True)]))
        for side in sides:
            for reader in side.readers:
                delattr(side, reader)
        attention.stacked = Stacked(stacks)

    def _stacked_product(self, names: list[str], weights: list[nn.Parameter]) -> Product:
        """Several matrices on top of each other as one; what of it trains gets its gradient, the rest is a copy."""
        rows = sum(map(len, weights))
        whole = weights[0].new_zeros(math.ceil(rows / MULTIPLE) * MULTIPLE, weights[0].shape[1], dtype=self.precision)
        product, first = Product(whole), 0
        for name, weight in zip(names, weights, strict=True):
            part = slice(first, first + len(weight))
            first = part.stop
            if (unit := self._numbers.get(name)) is None:
                self._frozen_rows.append((whole[part], weight))
            else:
                self.flat.copies[unit] = whole[part]
                self._matrices.append(_Matrix(unit, product, part))
        return product

    def _make_leaves(self) -> dict[int, nn.Parameter]:
        """What gets its gradient from autograd, by unit: biases, norms and positions."""
        weights, leaves = self.flat.by_unit(self.flat.weights), {}
        matrices = {0, *(matrix.unit for matrix in self._matrices)}
        for name, unit in self._numbers.items():
            if unit in matrices:
                continue
            place, _, attribute = name.replace("mlp.up", "mlp.fused_up").rpartition(".")
            module = self.model.get_submodule(place)
            if not isinstance(module, Product):  # whose bias is a copy in the precision of the product
                setattr(module, attribute, nn.Parameter(weights[unit]))
            leaves[unit] = getattr(module, attribute)
        return leaves


def _alike(sides: list[Projection]) -> list[list[int]]:
    """The numbers of the sides, those together that read the same: the stream as it is, or a mix of their own."""
    plain = [number for number, side in enumerate(sides) if not side.shift]
    return [plain, *([number] for number, side in enumerate(sides) if side.shift)]


def _units(model: GPT, config: RunConfig) -> list[Unit]:
    """All that trains, the token embedding first."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    units = [Unit.of("tokens.weight", trained.pop("tokens.weight"), config.weight_decay, MULTIPLE)]
    for name, parameter in trained.items():
        units.append(Unit.of(name, parameter, config.decay_of(parameter.ndim)))
    return units
