"""One optimisation step, behind one door: eager, compiled, or one CUDA graph.

An engine holds the logical model and its optimiser, and fetches the batch of a step by itself. Whatever working layout
it computes with, `model` and `moments` are the logical ones at any time.
"""

from __future__ import annotations

import inspect
import math
import os
import textwrap
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oelm.config import RunConfig
from oelm.data.batches import Ahead, Batches, MicroBatch
from oelm.errors import UserError, is_out_of_memory
from oelm.model.cost import step_cost
from oelm.model.gpt import GPT
from oelm.training.schedule import Rests, learning_rate, rate_factors
from oelm.training.world import World

Resting = frozenset[str]  # names of matrices that a step leaves out, although they are trained

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # which cuBLAS reads when it is first used

COMPILERS = ("torch._dynamo", "torch._inductor", "triton")

# Logits held at once while scoring, in elements: as large as pays off on the device.
LOGITS = {"cpu": 2**24, "cuda": 2**28}


def build_engine(config: RunConfig, world: World, batches: Batches) -> Engine:
    """A new model and its engine; one too large for the memory is refused."""
    try:
        return open_engine(GPT(config, config.seed).to(world.device), config, world, batches)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        cost = step_cost(config, config.batch_size)
        size = 4 * (cost.parameters + cost.trainable) + cost.optimizer_bytes
        raise UserError(
            f"the model does not fit into memory: {cost.parameters:,} parameters, their gradients and moments take "
            f"{size / 1e9:,.1f} GB; choose a smaller one (--preset, --d_model, --num_layers, --vocab_size)"
        ) from error


def open_engine(model: GPT, config: RunConfig, world: World, batches: Batches) -> Engine:
    """The engine that the config asks for; auto is the fastest that can do what else it asks for."""
    precision = precision_of(config, world.device)
    capturable = world.device.type == "cuda" and world.size == 1 and precision != torch.float16
    name = config.engine
    if name == "auto":
        name = "graph" if capturable else "compile" if world.device.type == "cuda" else "eager"
    if name != "graph":
        return TorchEngine(model, config, world, batches, compiled=name == "compile")
    if not capturable:
        raise UserError("--engine graph needs one process, a CUDA device and bf16 or fp32; use --engine auto")
    from oelm.training.graph import GraphEngine

    return GraphEngine(model, config, world, batches)


class Engine(ABC):
    """What the loop knows of a step."""

    name: str

    def __init__(self, model: GPT, config: RunConfig, world: World, batches: Batches) -> None:
        self.model = model
        self.config = config
        self.world = world
        self.batches = batches
        self.precision = precision_of(config, world.device)
        self.rests = Rests(config)

    @abstractmethod
    def rebuild(self) -> None:
        """Takes note that other parameters train from now on; those that go on training keep their moments."""

    @abstractmethod
    def step(self, step: int) -> None:
        """Update number `step`. On a GPU it is only begun: its loss is there when `results` is asked for."""

    @abstractmethod
    def results(self) -> list[tuple[float, float]]:
        """This process's loss and the gradient's norm of every step since the last call. Waits for the device."""

    @abstractmethod
    def rehearse(self, step: int) -> float:
        """The work of a step without its effect: compiles what is to be compiled; returns the seconds it takes."""

    @abstractmethod
    def score(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Summed cross-entropy of a batch."""

    @property
    @abstractmethod
    def scored_tokens(self) -> int:
        """Tokens that are best scored at once."""

    @abstractmethod
    def moments(self) -> dict[str, Tensor]:
        """The optimiser's state, live: parameter name + .exp_avg, .exp_avg_sq or .step."""

    def state(self) -> dict[str, Any]:
        """What else a resumed run needs."""
        return {}

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> None:
        """Takes note that the model and the moments were replaced, and of the rest of the state."""

    def to_device(self, array: npt.NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self.world.device.type == "cuda":
            return tensor.pin_memory().to(self.world.device, non_blocking=True)
        return tensor

    def _timed(self, work: Callable[[], object]) -> float:
        """Seconds that some work takes when done once more."""
        work()
        self._wait()
        started = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)


class TorchEngine(Engine):
    """Autocast, DistributedDataParallel, a gradient scaler for fp16, PyTorch's AdamW: PyTorch as everyone knows it."""

    def __init__(self, model: GPT, config: RunConfig, world: World, batches: Batches, compiled: bool) -> None:
        super().__init__(model, config, world, batches)
        self.name = "compile" if compiled else "eager"
        self._optimizer = build_optimizer(model, config)
        self._scaler = torch.amp.GradScaler("cuda", enabled=self.precision == torch.float16)
        self._ahead = Ahead(batches, world.rank, world.size, config.accumulation, config.num_workers)
        self._pending: list[Tensor] = []
        self._forward = self._wrapped()

    def _wrapped(self) -> nn.Module:
        forward = cast(nn.Module, torch.compile(self.model)) if self.name == "compile" else self.model
        if self.world.size == 1:
            return forward
        # A matrix that rests for a step takes no part in it.
        return _distributed(forward, find_unused_parameters=bool(self.rests))

    def rebuild(self) -> None:
        before = self.moments()
        self._optimizer = build_optimizer(self.model, self.config)
        carry_over(before, self.moments())
        self._forward = self._wrapped()

    def step(self, step: int) -> None:
        loss = self._gradients(step)
        self._scaler.unscale_(self._optimizer)
        trained = [p for group in self._optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(trained, self.config.grad_clip or math.inf)
        for group in self._optimizer.param_groups:
            group["lr"] = group["factor"] * learning_rate(self.config, step)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        self._pending.append(torch.stack([loss, norm]))

    def results(self) -> list[tuple[float, float]]:
        if not self._pending:
            return []
        pairs = torch.stack(self._pending).double().tolist()
        self._pending = []
        return [(loss, norm) for loss, norm in pairs]

    def rehearse(self, step: int) -> float:
        seconds = self._timed(lambda: self._gradients(step))
        self._optimizer.zero_grad(set_to_none=True)
        return seconds

    @torch.no_grad()
    def score(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Always by the eager model: scored batches come in several shapes."""
        self.model.eval()
        with self._autocast():
            logits = self.model(inputs)
        self.model.train()
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")

    @property
    def scored_tokens(self) -> int:
        return LOGITS[self.world.device.type] // self.config.vocab_size

    def moments(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": tensor
            for name, parameter in self.model.named_parameters()
            if parameter in self._optimizer.state
            for key, tensor in self._optimizer.state[parameter].items()
        }

    def state(self) -> dict[str, Any]:
        return {"scaler": self._scaler.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        if state.get("scaler"):  # empty where the run was not in fp16, such as on a CPU
            self._scaler.load_state_dict(state["scaler"])

    def _gradients(self, step: int) -> Tensor:
        resting = [self.model.get_parameter(name) for name in self.rests.at(step)]
        for parameter in resting:
            parameter.requires_grad_(False)
        try:
            return self._summed_gradients(self._ahead.take(step))
        finally:
            for parameter in resting:
                parameter.requires_grad_()

    def _summed_gradients(self, micro_batches: list[MicroBatch]) -> Tensor:
        total = torch.zeros((), device=self.world.device)
        for micro, batch in enumerate(micro_batches):
            ddp = self._forward if isinstance(self._forward, DistributedDataParallel) else None
            last = micro == len(micro_batches) - 1
            with nullcontext() if ddp is None or last else ddp.no_sync():
                loss = self._loss(batch) / len(micro_batches)
                self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def _loss(self, batch: MicroBatch) -> Tensor:
        inputs, targets, rows = map(self.to_device, batch)
        with self._autocast():
            loss: Tensor = self._forward(inputs, targets, rows if self.config.dropout else None)
        return loss

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cuda", self.precision, enabled=self.precision != torch.float32)


def _distributed(module: nn.Module, find_unused_parameters: bool) -> DistributedDataParallel:
    """Gradients averaged over the processes. Nothing else travels: buffers are constants, frozen matrices as well."""
    known = inspect.signature(DistributedDataParallel).parameters
    buffers: dict[str, Any] = {"broadcast_buffers": False}
    if "forward_sync_buffers" in known:  # the same from torch 2.13 on
        buffers = {"forward_sync_buffers": False}
    return DistributedDataParallel(
        module, gradient_as_bucket_view=True, find_unused_parameters=find_unused_parameters, **buffers
    )


def build_optimizer(model: GPT, config: RunConfig) -> torch.optim.AdamW:
    """AdamW over what trains. A frozen matrix is in no group: it has no moments, no decay and no gradient."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    factors = rate_factors(config, trained)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in trained.items():
        groups.setdefault((factors[name], config.decay_of(parameter.ndim)), []).append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": some, "weight_decay": decay, "factor": factor}
            for (factor, decay), some in sorted(groups.items(), key=lambda group: group[0], reverse=True)
        ],
        lr=config.max_lr,
        betas=(config.beta1, config.beta2),
        fused=True,
    )
    # As PyTorch would at the first step; here from the start, so that a checkpoint can be loaded into it.
    for parameter in trained.values():
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


@torch.no_grad()
def carry_over(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """Copies the moments of what trained before and still does; those of what begins to train are zero."""
    for name in before.keys() & after.keys():
        after[name].copy_(before[name])


def precision_of(config: RunConfig, device: torch.device) -> torch.dtype:
    if device.type == "cpu" or not config.use_amp:
        return torch.float32
    return torch.bfloat16 if config.amp_dtype == "bf16" else torch.float16


@contextmanager
def deterministic_kernels(device: str) -> Iterator[None]:
    """Only kernels that give the same bytes each time. Must come before the first use of the GPU."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if used and device != "cpu" and WORKSPACE not in os.environ:
        raise UserError(
            f"--deterministic must be asked for before its process first uses the GPU; begin a new one, or set "
            f"{WORKSPACE}=:4096:8 before this one begins"
        )
    os.environ.setdefault(WORKSPACE, ":4096:8")
    memory: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # a help in finding mistakes, which takes a kernel for each new tensor
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        memory.fill_uninitialized_memory = before[1]


@contextmanager
def compiling(engine: Engine) -> Iterator[None]:
    """Makes one line of what PyTorch and Triton say where they cannot compile, such as without a compiler."""
    try:
        yield
    except Exception as error:
        theirs = any(kind.__module__.startswith(COMPILERS) for kind in type(error).__mro__)
        if engine.name == "eager" or is_out_of_memory(error) or not (theirs or "C compiler" in str(error)):
            raise
        reason = textwrap.shorten(str(error).partition("\n")[0], 200)
        raise UserError(
            f"--engine {engine.name} cannot be compiled on this machine ({reason}); install a C++ compiler, such as "
            f"g++, or use --engine eager"
        ) from error
