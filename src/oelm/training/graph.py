"""The whole step as one CUDA graph: token gather, forward, backward, clip, AdamW and schedule, no host in between.

The host writes a plan of the next steps (which sequences, at what rate) to the device and then only says "go"; losses
and norms stay on the device until someone asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from oelm.config import RunConfig
from oelm.data.batches import Batches
from oelm.model.gpt import GPT
from oelm.training.flat import clipped_adamw
from oelm.training.schedule import learning_rate
from oelm.training.step import Engine
from oelm.training.working import Working
from oelm.training.world import World

PLANNED_STEPS = 256
SCORED_TOKENS = 2**15
RESIDENT_SHARE = 0.5  # of the free memory, at most, goes to the corpus


class GraphEngine(Engine):
    name = "graph"

    def __init__(self, model: GPT, config: RunConfig, world: World, batches: Batches) -> None:
        super().__init__(model, config, world, batches)
        self._working = Working(model, config, self.precision)
        self._eager_trunk = self._working.trunk
        self._trunk = cast(Any, torch.compile(self._eager_trunk, dynamic=False))
        self._update = cast(Any, torch.compile(clipped_adamw, dynamic=False))
        self._graph: torch.cuda.CUDAGraph | None = None
        self._corpus = self._on_device(batches.tokens)
        device, width = world.device, config.batch_size
        self._starts = torch.zeros(PLANNED_STEPS, width, dtype=torch.long, device=device)
        self._rows = torch.zeros(PLANNED_STEPS, width, dtype=torch.long, device=device)
        self._rates = torch.zeros(PLANNED_STEPS, device=device)
        self._losses = torch.zeros(PLANNED_STEPS, 2, device=device)
        self._place = torch.zeros(1, dtype=torch.long, device=device)  # of the next step in the plan
        self._planned = range(0)
        self._fetched = 0  # the first step whose loss nobody has asked for yet
        self._results: list[tuple[float, float]] = []

    def step(self, step: int) -> None:
        if self._graph is None:
            self.rehearse(step)
        if step not in self._planned:
            self._plan(step)
        assert self._graph is not None
        self._graph.replay()
        self._done = step + 1

    def results(self) -> list[tuple[float, float]]:
        if self._planned:
            first = self._planned.start
            new = self._losses[self._fetched - first : self._done - first].double().tolist()
            self._results += [(loss, norm) for loss, norm in new]
            self._fetched = self._done
        results, self._results = self._results, []
        return results

    def rehearse(self, step: int) -> float:
        with self._unchanged():
            self._plan(step)
            self._capture()
            assert self._graph is not None
            seconds = self._timed(self._graph.replay)
        self._planned = range(0)
        return seconds

    def score(self, inputs: Tensor, targets: Tensor) -> Tensor:
        whole = inputs.numel() == self.scored_tokens
        self._working.trunk = self._trunk if whole else self._eager_trunk
        self._working.model.eval()
        summed = self._working.score(inputs, targets)
        self._working.model.train()
        return summed

    @property
    def scored_tokens(self) -> int:
        return max(1, SCORED_TOKENS // self.config.seq_len) * self.config.seq_len

    def moments(self) -> dict[str, Tensor]:
        return {name: tensor for group in self._working.groups for name, tensor in group.moments().items()}

    def restore(self, state: dict[str, Any]) -> None:
        self._working.refresh()
        self._planned = range(0)

    def _plan(self, step: int) -> None:
        """Writes the next steps to the device, in the order of its stream: replays before it still see the old plan."""
        self._results = self.results()
        steps = range(step, min(step + PLANNED_STEPS, self.config.max_steps))
        rows = np.stack([self.batches.rows(number) for number in steps])
        rates = np.array([learning_rate(self.config, number) for number in steps], dtype=np.float32)
        count = len(steps)
        for buffer, values in (
            (self._rows, rows),
            (self._starts, self.batches.starts(rows.reshape(-1)).reshape(rows.shape)),
            (self._rates, rates),
        ):
            buffer[:count].copy_(torch.from_numpy(values).pin_memory(), non_blocking=True)
        self._place.zero_()
        self._planned, self._fetched, self._done = steps, step, step

    def _capture(self) -> None:
        """Records the step. Run first outside the recording, so that everything is compiled and allocated."""
        self._working.trunk = self._trunk
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._whole_step()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._whole_step()

    def _whole_step(self) -> None:
        config = self.config
        sequences = self._gather(self._starts.index_select(0, self._place)[0])
        rows = self._rows.index_select(0, self._place)[0]
        rate = self._rates.index_select(0, self._place)[0]
        size, total = config.batch_size // config.accumulation, torch.zeros((), device=self.world.device)
        for micro in range(config.accumulation):
            part = slice(micro * size, (micro + 1) * size)
            inputs, targets = sequences[part, :-1], sequences[part, 1:]
            total += self._working.gradients(inputs, targets, rows[part], 1 / config.tokens_per_step, micro > 0)
        with torch.no_grad():
            groups = self._working.groups
            norm = self._update(
                [group.buffers for group in groups],
                [group.decay for group in groups],
                rate,
                (config.beta1, config.beta2),
                config.grad_clip,
            )
            self._working.restack()
            outcome = torch.stack([total / config.tokens_per_step, norm])
            self._losses.index_copy_(0, self._place, outcome[None])
            self._place.add_(1)

    def _gather(self, starts: Tensor) -> Tensor:
        places = starts[:, None] + torch.arange(self.config.seq_len + 1, device=starts.device)
        mask = 2 ** (8 * self._corpus.element_size()) - 1
        sequences: Tensor = self._corpus[places].long() & mask
        return sequences

    def _on_device(self, tokens: Any) -> Tensor:
        """The corpus as signed integers of the same bytes: PyTorch cannot index unsigned ones on a GPU."""
        signed = tokens.view(f"int{8 * tokens.itemsize}")
        return torch.from_numpy(np.asarray(signed)).to(self.world.device)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Puts weights and moments back afterwards."""
        tensors = [
            tensor
            for group in self._working.groups
            for tensor in (
                group.buffers.weights,
                group.buffers.exp_avg,
                group.buffers.exp_avg_sq,
                group.buffers.updates,
            )
        ]
        before = [tensor.clone() for tensor in tensors]
        try:
            yield
        finally:
            torch._foreach_copy_(tensors, before)
            self._working.refresh()
