"""The processes that train together: one, or as many as torchrun started."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from oelm.config import RunConfig
from oelm.errors import InterruptedRunError, UserError


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def sum(self, values: list[float]) -> list[float]:
        """Sums, over the processes."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor)
        return [float(value) for value in tensor.tolist()]

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()

    def peak_memory(self) -> int | None:
        """The most bytes that this process has held on its GPU since it joined; None on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None


@contextmanager
def joined(config: RunConfig) -> Iterator[World]:
    """This process's place in the world, on the device that the config asks for."""
    rank, size, local_rank = _environment("RANK", 0), _environment("WORLD_SIZE", 1), _environment("LOCAL_RANK", 0)
    if rank >= size:
        raise UserError(f"RANK={rank} in the environment is not below WORLD_SIZE={size}; unset both, or use torchrun")
    if size > 1 and (missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]):
        raise UserError(
            f"WORLD_SIZE={size} in the environment, but no {missing[0]}; start with torchrun, or unset WORLD_SIZE"
        )
    if config.batch_size % (size * config.accumulation):
        raise UserError(
            f"--batch_size {config.batch_size} cannot be shared by {size} processes × "
            f"--accumulation {config.accumulation}"
        )
    device = choose_device(config.device, local_rank if size > 1 else None)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.reset_peak_memory_stats(device)
    if size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    world = World(rank, size, device)
    try:
        yield world
        world.wait()  # whoever left early would take down those who still write
    except InterruptedRunError:  # which all of them raise, after the same step
        world.wait()
        raise
    finally:
        if size > 1:
            gc.collect()  # models that still hold on to the network
            dist.destroy_process_group()


def _environment(name: str, default: int) -> int:
    """A number that torchrun leaves in the environment."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise UserError(f"{name}={text} in the environment is not a number; torchrun sets it, otherwise unset it")
    return int(text)


def choose_device(name: str, local_rank: int | None = None) -> torch.device:
    available = torch.cuda.is_available()
    if name == "auto":
        name = "cuda" if available else "cpu"
    if name.startswith("cuda"):
        if not available:
            raise UserError(f"--device {name}: this machine has no CUDA device; use --device cpu")
        index = local_rank if local_rank is not None else int(name.partition(":")[2] or 0)
        if index >= torch.cuda.device_count():
            raise UserError(f"--device cuda:{index}: this machine has {torch.cuda.device_count()} CUDA device(s)")
        return torch.device("cuda", index)
    return torch.device("cpu")
