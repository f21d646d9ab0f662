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
from oelm.model.attention import Attention
from oelm.model.gpt import GPT
from oelm.model.stacked import Stacked
from oelm.training.flat import Group, Unit
from oelm.training.loss import head_loss, head_score

VOCABULARY_MULTIPLE = 64
SIDES = ("q", "k", "v")


class Working:
    """A model laid out for speed, with the gradient of a batch and the score of one."""

    def __init__(self, model: GPT, config: RunConfig, precision: torch.dtype) -> None:
        self.precision = precision
        self.vocab_size = config.vocab_size
        self.model = copy.deepcopy(model)
        self.groups = _groups(model, config, precision)
        self._tokens, self._matrices, self._vectors = self.groups
        self._frozen_stacks: list[tuple[Tensor, list[nn.Parameter]]] = []  # and the logical rows that they begin with
        self._leaves = self._lay_out(model)
        self.trunk = self.model.trunk
        self.refresh()

    def refresh(self) -> None:
        """Makes the working copies anew from the logical weights."""
        with torch.no_grad():
            for whole, frozen in self._frozen_stacks:
                if frozen:
                    whole[: sum(len(p) for p in frozen)] = torch.cat([p.detach() for p in frozen])
            for group in self.groups:
                group.buffers.copy.copy_(group.buffers.weights)
            self.restack()

    def restack(self) -> None:
        """Brings trained rows, which the optimiser has just written, to where they lie beside frozen ones."""
        apart = [stack for stack in self._stacks() if len(stack.trained) < len(stack.whole)]
        if apart:
            torch._foreach_copy_(
                [stack.whole[-len(stack.trained) :] for stack in apart], [stack.trained.detach() for stack in apart]
            )

    def gradients(self, inputs: Tensor, targets: Tensor, rows: Tensor, scale: float, add: bool) -> Tensor:
        """The summed loss of a micro-batch; scale × its gradient goes, or is added, into the groups' buffers."""
        table, of_table = self._tokens.by_unit(self._tokens.buffers.weights)[0], self._token_gradient()
        embedded = F.embedding(inputs, table).requires_grad_()
        with self._autocast():
            hidden = self.trunk(embedded, rows).to(self.precision)
        weight = self._tokens.by_unit(self._tokens.buffers.copy)[0]
        loss, by_hidden = head_loss(
            hidden.detach().flatten(0, 1), weight, targets.flatten(), self.vocab_size, scale, of_table, add
        )
        by_embedded, *others = torch.autograd.grad(hidden, [embedded, *self._leaves], by_hidden.view_as(hidden))
        of_table.index_add_(0, inputs.flatten(), by_embedded.flatten(0, 1))
        views = [v for group in (self._matrices, self._vectors) for v in group.by_unit(group.buffers.gradient)]
        if add:
            torch._foreach_add_(views, [gradient.to(view.dtype) for gradient, view in zip(others, views, strict=True)])
        else:
            torch._foreach_copy_(views, others)
        return loss

    @torch.no_grad()
    def score(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The summed cross-entropy of a batch."""
        embedded = F.embedding(inputs, self._tokens.by_unit(self._tokens.buffers.weights)[0])
        with self._autocast():
            hidden = self.trunk(embedded, None).to(self.precision)
        weight = self._tokens.by_unit(self._tokens.buffers.copy)[0]
        return head_score(hidden.flatten(0, 1), weight, targets.flatten(), self.vocab_size)

    def _token_gradient(self) -> Tensor:
        return self._tokens.by_unit(self._tokens.buffers.gradient)[0]

    def _autocast(self) -> torch.autocast:
        enabled = self.precision != torch.float32
        return torch.autocast(self._tokens.buffers.weights.device.type, self.precision, enabled=enabled)

    def _stacks(self) -> list[Stacked]:
        return [module for module in self.model.modules() if isinstance(module, Stacked)]

    def _lay_out(self, model: GPT) -> list[nn.Parameter]:
        """Gives the working model its tensors; returns those that get a gradient, in the order of the groups' units."""
        del self.model.tokens  # looked up and multiplied outside the trunk
        leaves = []
        for group in (self._matrices, self._vectors):
            copies, weights = group.by_unit(group.buffers.copy), group.by_unit(group.buffers.weights)
            for unit, copied, weight in zip(group.units, copies, weights, strict=True):
                names = list(unit.parameters)
                multiplied = not names[0].startswith("positions") and "norm" not in names[0]
                leaf = nn.Parameter(copied if multiplied else weight)
                leaves.append(leaf)
                if len(names) > 1 or names[0].endswith("attention.v.weight"):
                    self._stack(names[-1].removesuffix(".v.weight"), model, leaf)
                else:
                    module, _, attribute = names[0].rpartition(".")
                    setattr(self.model.get_submodule(module), attribute, leaf)
        return leaves

    def _stack(self, place: str, model: GPT, trained: nn.Parameter) -> None:
        logical, working = model.get_submodule(place), self.model.get_submodule(place)
        assert isinstance(working, Attention)
        weights = {side: logical.get_parameter(f"{side}.weight") for side in SIDES}
        frozen = [side for side in SIDES if not weights[side].requires_grad]
        whole = trained.detach()
        if frozen:
            rows = sum(len(w) for w in weights.values())
            whole = torch.empty(rows, whole.shape[1], dtype=self.precision, device=whole.device)
        order = (*frozen, *(side for side in SIDES if side not in frozen))
        working.stacked = Stacked(whole, trained, order)
        self._frozen_stacks.append((whole, [weights[side] for side in frozen]))
        for side in SIDES:
            delattr(working, side)


def _groups(model: GPT, config: RunConfig, precision: torch.dtype) -> list[Group]:
    """Token embedding, matrices, vectors. Micro-steps add up in fp32, and so does what the embedding gets twice."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    tokens = Unit.of({"tokens.weight": trained.pop("tokens.weight")}, VOCABULARY_MULTIPLE)
    matrices: list[Unit] = []
    for name in [name for name, p in trained.items() if p.ndim >= 2]:
        if name not in trained:  # stacked already
            continue
        place, _, side = name.removesuffix(".weight").rpartition(".")
        if place.endswith("attention") and side in SIDES:
            stack = [f"{place}.{side}.weight" for side in SIDES if f"{place}.{side}.weight" in trained]
            matrices.append(Unit.of({part: trained.pop(part) for part in stack}))
        else:
            matrices.append(Unit.of({name: trained.pop(name)}))
    vectors = [Unit.of({name: p}) for name, p in trained.items()]
    summed = precision if config.accumulation == 1 else torch.float32
    decay = config.weight_decay
    return [
        Group([tokens], decay, precision, torch.float32),
        Group(matrices, decay, precision, summed),
        Group(vectors, decay if config.decay == "all" else 0.0, precision, torch.float32),
    ]
