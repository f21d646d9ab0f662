"""The working layout: what a fast step computes with, derived from the logical model and never saved.

The logical model's weights stay where they are in name and shape; underneath, they become views into flat buffers.
Beside them lies a copy in the precision of the products, in which Q, K and V are one matrix and the vocabulary is
padded to what matrix units like. `refresh` makes the copy anew when the weights have been replaced.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.config import RunConfig
from oelm.fast.adamw import Flat, Unit
from oelm.fast.gelu import Up
from oelm.fast.loss import head_loss, head_score
from oelm.fast.norm import FusedAddNorm
from oelm.fast.stacked import Stacked
from oelm.model.attention import Attention
from oelm.model.gpt import GPT, AddNorm, FeedForward

VOCABULARY_MULTIPLE = 64
SIDES = ("q", "k", "v")


class Working:
    """A model laid out for speed, with the gradient of a batch and the score of one."""

    def __init__(self, model: GPT, config: RunConfig, precision: torch.dtype) -> None:
        self.precision = precision
        self.vocab_size = config.vocab_size
        self.model = copy.deepcopy(model)
        self.flat = Flat(_units(model, config), precision)
        self.trunk = self.model.trunk
        self._table, *_ = self.flat.by_unit(self.flat.weights)
        self._head = self.flat.copies[0]
        self._frozen_rows: list[tuple[Tensor, nn.Parameter]] = []  # of stacks, and where they come from
        self._leaves = self._lay_out(model)
        sums = self._leaves if config.accumulation > 1 else []
        self._sums = [torch.zeros_like(leaf, dtype=torch.float32) for leaf in sums]  # over micro-steps
        self.gradient: list[Tensor] = [torch.zeros_like(self._table)]  # one per unit, once there has been a batch
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Makes the working copies anew from the logical weights."""
        for rows, weight in self._frozen_rows:
            rows.copy_(weight)
        self.flat.refresh()

    def gradients(self, inputs: Tensor, targets: Tensor, rows: Tensor, scale: float, add: bool) -> Tensor:
        """The summed loss of a micro-batch; scale × its gradient is then in `gradient`, or added to what is there."""
        embedded = F.embedding(inputs, self._table).requires_grad_()
        hidden = self._hidden(embedded, rows)
        of_table = self.gradient[0]
        loss, by_hidden = head_loss(
            hidden.detach().flatten(0, 1), self._head, targets.flatten(), self.vocab_size, scale, of_table, add
        )
        by_embedded, *others = torch.autograd.grad(hidden, [embedded, *self._leaves], by_hidden.view_as(hidden))
        of_table.index_add_(0, inputs.flatten(), by_embedded.flatten(0, 1))
        for total, gradient in zip(self._sums, others, strict=False):
            total.add_(gradient) if add else total.copy_(gradient)
        self.gradient = [of_table, *(self._sums or others)]
        return loss

    @torch.no_grad()
    def score(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The summed cross-entropy of a batch."""
        hidden = self._hidden(F.embedding(inputs, self._table), None)
        return head_score(hidden.flatten(0, 1), self._head, targets.flatten(), self.vocab_size)

    def _hidden(self, embedded: Tensor, rows: Tensor | None) -> Tensor:
        with torch.autocast(embedded.device.type, self.precision, enabled=self.precision != torch.float32):
            return self.trunk(embedded, rows).to(self.precision)

    def _lay_out(self, model: GPT) -> list[nn.Parameter]:
        """Gives the working model its tensors; returns those that get a gradient, a unit each, but for the table."""
        del self.model.tokens  # looked up and multiplied outside the trunk
        leaves = []
        weights = self.flat.by_unit(self.flat.weights)
        for i, unit in list(enumerate(self.flat.units))[1:]:
            place, _, attribute = list(unit.parameters)[-1].rpartition(".")
            if place.endswith("attention.v"):
                leaf = self._stack(place.removesuffix(".v"), model, i)
            else:
                multiplied = not place.startswith("positions") and "norm" not in place
                leaf = nn.Parameter(self.flat.copies[i] if multiplied else weights[i])
                setattr(self.model.get_submodule(place), attribute, leaf)
            leaves.append(leaf)
        for place, module in list(self.model.named_modules()):
            if isinstance(module, AddNorm):
                self.model.set_submodule(place, FusedAddNorm(module, self.precision))
            elif isinstance(module, FeedForward):
                module.fused_up = Up(module.up)
                del module.up
        return leaves

    def _stack(self, place: str, model: GPT, unit: int) -> nn.Parameter:
        """Makes Q, K and V of a layer one product. Beside frozen rows, the trained ones' copy lies in one buffer."""
        logical, working = model.get_submodule(place), self.model.get_submodule(place)
        assert isinstance(working, Attention)
        weights = {side: p for side in SIDES for name, p in logical.named_parameters() if name == f"{side}.weight"}
        order = sorted(weights, key=lambda side: weights[side].requires_grad)  # the frozen ones first
        whole = self.flat.copies[unit]
        if frozen := [weights[side] for side in order if not weights[side].requires_grad]:
            whole = whole.new_empty(sum(map(len, weights.values())), whole.shape[1])
            self._frozen_rows += zip(whole.chunk(len(order)), frozen, strict=False)
            self.flat.copies[unit] = whole[-self.flat.units[unit].rows :]
        trained = nn.Parameter(self.flat.copies[unit])
        working.stacked = Stacked(whole, trained, tuple(order))
        for side in order:
            delattr(working, side)
        return trained


def _units(model: GPT, config: RunConfig) -> list[Unit]:
    """The token embedding, then the matrices, of which Q, K and V of a layer, as far as they train, are one unit."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    units = [Unit.of({"tokens.weight": trained.pop("tokens.weight")}, config.weight_decay, VOCABULARY_MULTIPLE)]
    for layer in range(config.num_layers):
        stack = [f"blocks.{layer}.attention.{side}.weight" for side in SIDES]
        units.append(Unit.of({name: trained.pop(name) for name in stack if name in trained}, config.weight_decay))
    for name, parameter in trained.items():
        decays = config.decay == "all" or parameter.ndim >= 2
        units.append(Unit.of({name: parameter}, config.weight_decay if decays else 0.0))
    return units
