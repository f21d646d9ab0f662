"""One optimisation step: forward, backward, clip, AdamW; eager or compiled, on one process or many."""

from __future__ import annotations

import inspect
import math
import os
from contextlib import nullcontext
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oelm.config import RunConfig
from oelm.data.batches import Tokens
from oelm.model.gpt import GPT, tensor_seed
from oelm.training.world import World

MicroBatches = list[tuple[Tokens, Tokens]]


class Stepper:
    """Holds the model, its optimiser and the way in which a step is executed."""

    def __init__(self, model: GPT, config: RunConfig, world: World) -> None:
        self.model = model
        self.config = config
        self.world = world
        self.engine = engine_of(config, world.device)
        self.precision = precision_of(config, world.device)
        self.optimizer = build_optimizer(model, config)
        self.scaler = torch.amp.GradScaler("cuda", enabled=self.precision == torch.float16)
        forward: nn.Module = model
        if self.engine == "compile":
            forward = cast(nn.Module, torch.compile(model))
        if world.size > 1:
            forward = _distributed(forward)
        self._forward = forward

    def update(self, batches: MicroBatches, step: int, rate: float) -> tuple[Tensor, Tensor]:
        """One step. Returns this process's loss and the gradient's norm, both still on the device."""
        loss = self._gradients(batches, step)
        self.scaler.unscale_(self.optimizer)
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = nn.utils.clip_grad_norm_(trained, self.config.grad_clip or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, norm

    def rehearse(self, batches: MicroBatches, step: int) -> None:
        """The work of a step without its effect: compiles what is to be compiled, and can be timed."""
        self._gradients(batches, step)
        self.optimizer.zero_grad(set_to_none=True)
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)

    @torch.no_grad()
    def score(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Summed cross-entropy of a batch, always by the eager model: its batches come in several shapes."""
        with self._autocast():
            logits = self.model(inputs)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")

    def to_device(self, tokens: Tokens) -> Tensor:
        tensor = torch.from_numpy(tokens)
        if self.world.device.type == "cuda":
            return tensor.pin_memory().to(self.world.device, non_blocking=True)
        return tensor

    def _gradients(self, batches: MicroBatches, step: int) -> Tensor:
        total = torch.zeros((), device=self.world.device)
        for micro, (inputs, targets) in enumerate(batches):
            if self.config.dropout:
                # Dropout, too, is a function of seed and step, so a resumed run drops what the first would have.
                torch.manual_seed(tensor_seed(self.config.seed, f"dropout/{step}/{micro}/{self.world.rank}"))
            last = micro == len(batches) - 1
            ddp = self._forward if isinstance(self._forward, DistributedDataParallel) else None
            with nullcontext() if ddp is None or last else ddp.no_sync():
                with self._autocast():
                    loss = self._forward(self.to_device(inputs), self.to_device(targets)) / len(batches)
                self.scaler.scale(loss).backward()
            total += loss.detach()
        return total

    def _autocast(self) -> torch.autocast:
        return torch.autocast("cuda", self.precision, enabled=self.precision != torch.float32)


def _distributed(module: nn.Module) -> DistributedDataParallel:
    """Gradients averaged over the processes. Nothing else travels: buffers are constants, frozen matrices as well."""
    known = inspect.signature(DistributedDataParallel).parameters
    buffers: dict[str, Any] = {"broadcast_buffers": False}
    if "forward_sync_buffers" in known:  # the same from torch 2.13 on
        buffers = {"forward_sync_buffers": False}
    return DistributedDataParallel(module, gradient_as_bucket_view=True, **buffers)


def build_optimizer(model: GPT, config: RunConfig) -> torch.optim.AdamW:
    """AdamW over what trains. A frozen matrix is in no group: it has no moments, no decay and no gradient."""
    trained = [p for p in model.parameters() if p.requires_grad]
    decays = [p for p in trained if config.decay == "all" or p.ndim >= 2]
    rests = [p for p in trained if config.decay != "all" and p.ndim < 2]
    groups = [
        {"params": decays, "weight_decay": config.weight_decay},
        {"params": rests, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.max_lr,
        betas=(config.beta1, config.beta2),
        fused=True,
    )


def engine_of(config: RunConfig, device: torch.device) -> str:
    if config.engine != "auto":
        return config.engine
    return "compile" if device.type == "cuda" else "eager"


def precision_of(config: RunConfig, device: torch.device) -> torch.dtype:
    if device.type == "cpu" or not config.use_amp:
        return torch.float32
    return torch.bfloat16 if config.amp_dtype == "bf16" else torch.float16


def make_deterministic() -> None:
    """Only kernels that give the same bytes each time. Must come before the first use of the GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
