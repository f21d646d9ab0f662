"""How busy the device of a run is: its GPU by NVML, or the processors that its process keeps busy."""

from __future__ import annotations

import socket
from typing import Any

from oelm.runs import table
from oelm.runs.overview import Overview


class Loads:
    """Remembers what it has opened, and when it last looked at a process."""

    def __init__(self) -> None:
        self._host = socket.gethostname()
        self._processes: dict[int, Any] = {}
        self._nvml: Any = None
        self._tried = False

    def row(self, run: Overview, name: str) -> table.Row:
        """A run as a row, with its device and, while it runs on this machine, the device's load."""
        if not run.active or run.host != self._host or run.device is None:
            return table.Row(run, name, table.device(run))
        if run.device.startswith("GPU-"):
            return table.Row(run, name, *self._gpu(run.device, table.device(run)))
        return table.Row(run, name, run.device, self._cpu(run.pid))

    def _cpu(self, pid: int | None) -> str:
        """In per cent of one core since the last look, as top has it."""
        import psutil

        if pid is None:
            return table.NONE
        try:
            known = pid in self._processes
            process = self._processes.setdefault(pid, psutil.Process(pid))
            busy = process.cpu_percent()
        except (psutil.Error, OverflowError):
            self._processes.pop(pid, None)
            return table.NONE
        return f"{busy:.0f} %" if known else table.NONE

    def _gpu(self, uuid: str, otherwise: str) -> tuple[str, str]:
        nvml = self._opened()
        if nvml is None:
            return otherwise, table.NONE
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            return f"GPU {nvml.nvmlDeviceGetIndex(handle)}", f"{nvml.nvmlDeviceGetUtilizationRates(handle).gpu} %"
        except nvml.NVMLError:
            return otherwise, table.NONE

    def _opened(self) -> Any:
        if not self._tried:
            self._tried = True
            import pynvml

            try:
                pynvml.nvmlInit()
                self._nvml = pynvml
            except pynvml.NVMLError:  # no GPU here, or no driver
                self._nvml = None
        return self._nvml
