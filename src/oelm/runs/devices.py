"""Where runs can go: slots on the CPU, or GPUs that nobody else is using.

A place is held by a lock that the run's own process inherits, so that it is held for as long as that process lives,
whatever becomes of the queue; another queue on this machine finds it taken.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from oelm.errors import UserError

BUSY_MEMORY = 2 * 2**30  # more than a driver or a desktop holds: somebody whose processes we cannot see computes there


@dataclass
class Place:
    """Where one run goes; whoever has started it lets go, and the run's process holds on."""

    name: str
    environment: dict[str, str]
    locks: tuple[int, ...] = ()
    processes: int = 1

    def let_go(self) -> None:
        for lock in self.locks:
            os.close(lock)
        self.locks = ()


class Places(Protocol):
    """The places that a queue may use."""

    def take(self) -> Place | None:
        """A free place, or None."""

    def occupied_by(self) -> str:
        """Why the last `take` found none."""


@dataclass
class Slots:
    """So many runs at once on the CPU, which share its cores: of all queues on the same outputs together."""

    count: int
    outputs: Path

    def take(self) -> Place | None:
        whose = hashlib.sha256(str(self.outputs.resolve()).encode()).hexdigest()[:16]
        for number in range(self.count):
            if (lock := _lock(f"slot-{whose}-{number}")) is not None:
                threads = max(1, (os.cpu_count() or 1) // self.count)
                environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
                return Place(f"slot {number}", environment, (lock,))
        return None

    def occupied_by(self) -> str:
        return "a free slot"


@dataclass
class Gpus:
    """GPUs of this machine: all, or those chosen; each run gets `per_run` of them."""

    chosen: tuple[int, ...]
    per_run: int = 1
    _occupied: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of_this_machine(cls, chosen: Sequence[int] | None, per_run: int) -> Gpus:
        """The GPUs that were asked for, if they are there and enough."""
        count = gpu_count()
        if not count:
            raise UserError("--gpus: NVML finds no GPU on this machine; leave it out to run on the CPU")
        gpus = tuple(chosen) if chosen is not None else assigned(count)
        if missing := [gpu for gpu in gpus if gpu >= count]:
            raise UserError(f"--gpus {missing[0]}: this machine has the GPUs 0 to {count - 1}")
        if not 1 <= per_run <= len(gpus):
            raise UserError(f"--gpus-per-run {per_run} must lie between 1 and the {len(gpus)} GPU(s) that may be used")
        return cls(gpus, per_run)

    def take(self) -> Place | None:
        taken: list[tuple[int, str, int]] = []
        self._occupied = {}
        for gpu in self.chosen:
            uuid, occupied = look_at(gpu)
            try:
                lock = None if occupied else _lock(uuid)
            except OSError as error:
                lock, occupied = None, f"its lock cannot be opened ({error})"
            if lock is None:
                self._occupied[gpu] = occupied or "another run of OELM"
                continue
            taken.append((gpu, uuid, lock))
            if len(taken) == self.per_run:
                return _place(taken)
        for _, _, lock in taken:
            os.close(lock)
        return None

    def occupied_by(self) -> str:
        return "; ".join(f"GPU {gpu}: {who}" for gpu, who in self._occupied.items())


def _place(taken: Sequence[tuple[int, str, int]]) -> Place:
    gpus, uuids, locks = zip(*taken, strict=True)
    name = f"GPU {gpus[0]}" if len(gpus) == 1 else f"GPUs {', '.join(map(str, gpus))}"
    return Place(name, {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}, locks, processes=len(gpus))


def _lock(name: str) -> int | None:
    """A hold on a GPU or a slot against the other queues on this machine, or None where another has it."""
    folder = Path(tempfile.gettempdir()) / "oelm-devices"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o777)
        folder.chmod(0o1777)  # for all users of the machine, whatever the umask
    try:
        file = os.open(folder / name, os.O_RDONLY)  # with O_CREAT, a file of another user might be refused
    except FileNotFoundError:
        file = os.open(folder / name, os.O_RDONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def assigned(count: int) -> tuple[int, ...]:
    """All GPUs, or those that a scheduler has left this process, by number or by uuid, in CUDA_VISIBLE_DEVICES."""
    words = os.environ.get("CUDA_VISIBLE_DEVICES")
    if words is None:
        return tuple(range(count))
    uuids = {look_at(gpu)[0]: gpu for gpu in range(count)}
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    found = [int(word) if word.isdecimal() else uuids.get(word, count) for word in wanted]
    if not found or max(found) >= count:
        raise UserError(f"CUDA_VISIBLE_DEVICES={words} in the environment names no GPU that is there; unset it")
    return tuple(found)


def gpu_count() -> int:
    """How many GPUs NVML finds on this machine."""
    nvml = _nvml()
    return int(nvml.nvmlDeviceGetCount()) if nvml else 0


def look_at(gpu: int) -> tuple[str, str]:
    """A GPU's uuid, and who uses it; nobody: an empty string. One that has vanished is used by nobody ever again."""
    nvml = _nvml()
    if nvml is None:
        return "", "the driver does not answer"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(gpu)
        uuid = str(nvml.nvmlDeviceGetUUID(handle))
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        used = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
    except nvml.NVMLError as error:
        return "", f"does not answer ({error})"
    if processes:
        return uuid, ", ".join(_described(process.pid) for process in processes) + f", {used / 2**30:.1f} GiB"
    return uuid, f"{used / 2**30:.1f} GiB used by an unseen process" if used > BUSY_MEMORY else ""


def _described(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{process.name()} (pid {pid}, {process.username()})"
    except psutil.Error:
        return f"pid {pid}"


def _nvml() -> Any:
    """NVML, ready to be asked; None where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
