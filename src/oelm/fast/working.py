"""The working layout: what a fast step computes with, derived from the logical model and never saved.

The logical model's weights stay where they are in name and shape; underneath, they become views into flat buffers.
Beside them lies a copy in the precision of the products, in which Q, K and V are one matrix and the vocabulary is
padded to what matrix units like. `refresh` makes the copy anew when the weights have been replaced.
"""

from __future__ import annotations

import copy
from collections.abc import Set
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.config import RunConfig
from oelm.fast.adamw import Flat, Unit
from oelm.fast.loss import head_loss, head_score
from oelm.fast.norm import FusedAddNorm
from oelm.fast.products import FixedShuffle, Job, Product, Sides, Up, WeightGradients
from oelm.model.attention import Attention, Shuffle
from oelm.model.gpt import GPT, AddNorm, Block

VOCABULARY_MULTIPLE = 64
SIDES = ("q", "k", "v")


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
        self._shuffles: list[tuple[FixedShuffle, Shuffle]] = []
        self._matrices: list[_Matrix] = []
        self._lay_out(model)
        self._products = list(dict.fromkeys(matrix.product for matrix in self._matrices))
        self._leaves = self._make_leaves()
        self._adds_up = config.accumulation > 1
        whole = torch.float32 if self._adds_up else precision  # what is added up is not rounded in between
        outs = [torch.zeros_like(t, dtype=whole) for t in self.flat.by_unit(self.flat.weights)[1:]]
        self.gradient: list[Tensor] = [torch.zeros_like(self._table), *outs]
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Makes the working copies anew from the logical weights."""
        for rows, weight in self._frozen_rows:
            rows.copy_(weight)
        for ours, logical in self._shuffles:
            ours.refresh(logical)
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
        self.weight_gradients(jobs, micro, add)
        for unit, gradient in zip(self._leaves, others[len(self._products) :], strict=True):
            if not self._adds_up:
                self.gradient[unit] = gradient
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
            self._stack(f"{place}.attention", model, block.attention)
            block.attention.o = self._product(f"{place}.attention.o")  # type: ignore[assignment]
            block.mlp.fused_up = self._product(f"{place}.mlp.up", Up)
            del block.mlp.up
            block.mlp.down = self._product(f"{place}.mlp.down")  # type: ignore[assignment]
        for place, module in list(self.model.named_modules()):
            if isinstance(module, AddNorm):
                self.model.set_submodule(place, FusedAddNorm(module, self.precision))
            elif isinstance(module, Shuffle):
                fixed, logical = FixedShuffle(module), model.get_submodule(place)
                assert isinstance(logical, Shuffle)
                self.model.set_submodule(place, fixed)
                self._shuffles.append((fixed, logical))

    def _product(self, place: str, kind: type[Product] = Product) -> Product:
        unit = self._numbers[f"{place}.weight"]
        bias = self._numbers.get(f"{place}.bias")
        product = kind(self.flat.copies[unit], None if bias is None else nn.Parameter(self.flat.copies[bias]))
        self._matrices.append(_Matrix(unit, product, slice(None)))
        return product

    def _stack(self, place: str, model: GPT, attention: Attention) -> None:
        """Makes Q, K and V of a layer, as far as they are matrices, one product."""
        named = dict(model.named_parameters())
        weights = {side: named[name] for side in SIDES if (name := f"{place}.{side}.weight") in named}
        whole = torch.cat(list(weights.values())).detach().to(self.precision)
        attention.stacked = Sides(whole, tuple(weights))
        for i, (side, weight) in enumerate(weights.items()):
            rows = slice(i * len(weight), (i + 1) * len(weight))
            unit = self._numbers.get(f"{place}.{side}.weight")
            if unit is None:
                self._frozen_rows.append((whole[rows], weight))
            else:
                self.flat.copies[unit] = whole[rows]
                self._matrices.append(_Matrix(unit, attention.stacked, rows))
            delattr(attention, side)

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


def _units(model: GPT, config: RunConfig) -> list[Unit]:
    """All that trains, the token embedding first."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    units = [Unit.of("tokens.weight", trained.pop("tokens.weight"), config.weight_decay, VOCABULARY_MULTIPLE)]
    for name, parameter in trained.items():
        decays = config.decay == "all" or parameter.ndim >= 2
        units.append(Unit.of(name, parameter, config.weight_decay if decays else 0.0))
    return units
