"""The whole step as one CUDA graph: token gather, forward, backward, clip, AdamW and schedule, no host in between.

The host writes a plan of the next steps (which sequences, at what rate) to the device and then only says "go"; losses
and norms stay on the device until someone asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oelm.config import RunConfig
from oelm.data.batches import Ahead, Batches
from oelm.fast.adamw import settings
from oelm.fast.adamw_kernels import FusedAdamW
from oelm.fast.working import Working
from oelm.model.gpt import GPT
from oelm.training.schedule import learning_rate, rate_factors
from oelm.training.step import Engine, Resting, carry_over
from oelm.training.world import World

PLANNED_STEPS = 256
SCORED_TOKENS = 2**15
RESIDENT_SHARE = 0.5  # of the free memory, at most, goes to the corpus


class GraphEngine(Engine):
    name = "graph"

    def __init__(self, model: GPT, config: RunConfig, world: World, batches: Batches) -> None:
        super().__init__(model, config, world, batches)
        self._betas = (config.beta1, config.beta2)
        self._corpus = _resident(batches.tokens, world.device)
        self._staged = Ahead(batches, 0, 1, 1, config.num_workers)  # for a corpus that does not fit on the device
        self._sequences = torch.zeros(config.batch_size, config.seq_len + 1, dtype=torch.long, device=world.device)
        self._open()

    def _open(self) -> None:
        """Lays the model out for what trains of it now."""
        self._working = Working(self.model, self.config, self.precision)
        self._working.compile()
        self._masks: dict[Resting, npt.NDArray[np.float32]] = {}
        factors = rate_factors(self.config, [unit.name for unit in self._working.flat.units])
        self._plan = Plan(self.config, self.batches, self.world.device, self._updated, list(factors.values()))
        self._graphs: dict[Resting, torch.cuda.CUDAGraph] = {}
        self._updates: dict[Resting, FusedAdamW] = {}

    def rebuild(self) -> None:
        before = {name: tensor.clone() for name, tensor in self.moments().items()}
        for parameter in self.model.frozen().values():  # or it would keep the whole buffer that it was a part of
            parameter.data = parameter.detach().clone()
        self._open()
        carry_over(before, self.moments())

    def step(self, step: int) -> None:
        resting = self.rests.at(step)
        if resting not in self._graphs:
            self.rehearse(step)
        self._prepare(step)
        self._graphs[resting].replay()
        self._working.flat.updates += torch.from_numpy(self._updated(step))
        self._plan.done(step)

    def results(self) -> list[tuple[float, float]]:
        return self._plan.results()

    def rehearse(self, step: int) -> float:
        """Records the step, and the one after it where other matrices rest in that."""
        seconds = 0.0
        with self._unchanged():
            for number in (step + 1, step) if step + 1 < self.config.max_steps else (step,):
                self._plan.forget()
                self._prepare(number)
                if (resting := self.rests.at(number)) not in self._graphs:
                    self._capture(resting)
                    seconds = self._timed(self._graphs[resting].replay)
        self._plan.forget()
        return seconds

    def score(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self._working.model.eval()
        whole = inputs.shape == (self.scored_tokens // self.config.seq_len, self.config.seq_len)
        with torch.compiler.set_stance("default" if whole else "force_eager"):  # compiled for one shape only
            summed = self._working.score(inputs, targets)
        self._working.model.train()
        return summed

    @property
    def scored_tokens(self) -> int:
        return max(1, SCORED_TOKENS // self.config.seq_len) * self.config.seq_len

    def moments(self) -> dict[str, Tensor]:
        return self._working.flat.moments()

    def restore(self, state: dict[str, Any]) -> None:
        self._working.refresh()
        self._plan.forget()

    def _updated(self, step: int) -> npt.NDArray[np.float32]:
        """1 for each unit that is updated in a step, 0 for those that rest."""
        resting = self.rests.at(step)
        if resting not in self._masks:
            names = [unit.name for unit in self._working.flat.units]
            self._masks[resting] = np.array([name not in resting for name in names], dtype=np.float32)
        return self._masks[resting]

    def _prepare(self, step: int) -> None:
        self._plan.reach(step, self._working.flat.updates.numpy(), self._betas)
        if self._corpus is None:
            (batch,) = self._staged.take(step)
            self._sequences[:, :-1].copy_(self.to_device(batch.inputs))
            self._sequences[:, -1].copy_(self.to_device(batch.targets[:, -1]))

    def _capture(self, resting: Resting) -> None:
        working, config = self._working, self.config
        units = [i for i, unit in enumerate(working.flat.units) if unit.name not in resting]
        update = FusedAdamW(working.flat, units, self._betas, config.grad_clip)
        self._graphs[resting] = recorded(lambda: self._compute(resting, update))
        self._updates[resting] = update  # whose tables the graph reads
        working.weight_gradients.settle()
        update.settle()

    def _compute(self, resting: Resting, update: FusedAdamW) -> None:
        """The step that is next in the plan: loss, gradient, update, a note of the outcome."""
        config, plan = self.config, self._plan
        if self._corpus is not None:
            self._sequences = _gather(self._corpus, plan.now(plan.starts)[0], config.seq_len + 1)
        rows = plan.now(plan.rows)[0]
        size, total = config.batch_size // config.accumulation, torch.zeros((), device=self.world.device)
        for micro in range(config.accumulation):
            part = slice(micro * size, (micro + 1) * size)
            inputs, targets = self._sequences[part, :-1], self._sequences[part, 1:]
            total += self._working.gradients(inputs, targets, rows[part], 1 / config.tokens_per_step, micro, resting)
        norm = update(self._working.gradient, plan.now(plan.settings)[0])
        plan.advance(total / config.tokens_per_step, norm)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Puts weights and moments back afterwards."""
        flat = self._working.flat
        tensors = [flat.weights, flat.exp_avg, flat.exp_avg_sq]
        before = [tensor.clone() for tensor in tensors]
        try:
            yield
        finally:
            torch._foreach_copy_(tensors, before)
            self._working.refresh()


def recorded(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """The work as one graph. It runs first outside the recording, so that everything is compiled and allocated."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Of this thread alone: another one may be copying what a checkpoint is to hold.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph


class Plan:
    """The steps to come, on the device: which sequences, at what rate; and the losses of those that are done."""

    def __init__(
        self,
        config: RunConfig,
        batches: Batches,
        device: torch.device,
        updated: Callable[[int], npt.NDArray[np.float32]],
        factors: Sequence[float],
    ) -> None:
        self._config, self._batches, self._updated = config, batches, updated
        self._factors = np.array(factors)  # of each unit's rate
        self.starts = torch.zeros(PLANNED_STEPS, config.batch_size, dtype=torch.long, device=device)
        self.rows = torch.zeros_like(self.starts)
        self.settings = torch.zeros(PLANNED_STEPS, len(updated(0)), 3, device=device)  # as adamw.settings gives them
        self._losses = torch.zeros(PLANNED_STEPS, 2, device=device)
        self._place = torch.zeros(1, dtype=torch.long, device=device)  # of the next step
        self._steps = range(0)
        self._unread = range(0)  # steps whose losses nobody has asked for yet
        self._read: list[tuple[float, float]] = []

    def reach(self, step: int, updates: npt.NDArray[Any], betas: tuple[float, float]) -> None:
        """Makes sure that the plan goes on with this step, before which each unit was updated so many times.

        The new plan takes its place in the device's own order: steps begun before still see the old one.
        """
        if step in self._steps and step == self._unread.stop:
            return
        self._read = self.results()
        self._steps = range(step, step + PLANNED_STEPS)  # beyond the run's end, too: a rehearsal may get there
        rows = np.stack([self._batches.rows(number) for number in self._steps])
        rates = np.array([learning_rate(self._config, number) for number in self._steps])
        counts = updates + np.cumsum([self._updated(number) for number in self._steps], axis=0)
        for buffer, values in (
            (self.rows, rows),
            (self.starts, self._batches.starts(rows.reshape(-1)).reshape(rows.shape)),
            (self.settings, settings(rates[:, None] * self._factors, counts, betas)),
        ):
            buffer.copy_(torch.from_numpy(values).pin_memory(), non_blocking=True)
        self._place.zero_()
        self._unread = range(step, step)

    def now(self, buffer: Tensor) -> Tensor:
        """The row of the step that is next; on the device."""
        return buffer.index_select(0, self._place)

    def advance(self, loss: Tensor, norm: Tensor) -> None:
        """Notes the outcome of the step, on the device, and goes on to the next."""
        self._losses.index_copy_(0, self._place, torch.stack([loss, norm])[None])
        self._place.add_(1)

    def done(self, step: int) -> None:
        """Takes note, on the host, that a step was begun."""
        self._unread = range(self._unread.start, step + 1)

    def results(self) -> list[tuple[float, float]]:
        """Loss and norm of the steps since the last call. Waits for the device."""
        results, self._read = self._read, []
        if self._unread:
            first = self._steps.start
            new = self._losses[self._unread.start - first : self._unread.stop - first].double().tolist()
            results += [(loss, norm) for loss, norm in new]
            self._unread = range(self._unread.stop, self._unread.stop)
        return results

    def forget(self) -> None:
        """Lets the next step be planned anew; what was not read yet is kept."""
        self._read = self.results()
        self._steps = self._unread = range(0)


def _resident(tokens: npt.NDArray[Any], device: torch.device) -> Tensor | None:
    """The corpus on the device, if it fits; as signed integers of the same bytes, for only those can be indexed."""
    free, _ = torch.cuda.mem_get_info(device)
    if tokens.nbytes > RESIDENT_SHARE * free:
        return None
    return _copied(tokens.view(f"int{8 * tokens.itemsize}"), device)


def _copied(tokens: npt.NDArray[Any], device: torch.device, at_once: int = 2**28) -> Tensor:
    """A copy on the device, made piece by piece: the host need not have room for all of it."""
    copy = torch.empty(len(tokens), dtype=torch.from_numpy(tokens[:0].copy()).dtype, device=device)
    for first in range(0, len(tokens), at_once):
        copy[first : first + at_once] = torch.from_numpy(np.array(tokens[first : first + at_once]))
    return copy


def _gather(corpus: Tensor, starts: Tensor, length: int) -> Tensor:
    """Windows of the corpus, (starts, length)."""
    places = starts[:, None] + torch.arange(length, device=starts.device)
    mask = 2 ** (8 * corpus.element_size()) - 1
    windows: Tensor = corpus[places].long() & mask
    return windows
