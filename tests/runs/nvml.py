"""A machine with GPUs, as NVML would tell of it; on one that has none, the part of NVML that devices.py asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class NVMLError(Exception):
    pass


class Process(NamedTuple):
    pid: int


class Memory(NamedTuple):
    used: int


@dataclass
class Gpu:
    uuid: str
    pids: list[int] = field(default_factory=list)
    used: int = 500 * 2**20
    lost: bool = False


@dataclass
class Machine:
    """Stands in for the module pynvml."""

    gpus: list[Gpu]
    NVMLError: Any = NVMLError

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if self.gpus[index].lost:
            raise NVMLError("GPU is lost")
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[Process]:
        return [Process(pid) for pid in gpu.pids]

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> Memory:
        return Memory(gpu.used)
