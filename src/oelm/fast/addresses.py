"""Where tensors lie, told to kernels by a table on the device, since a kernel takes only so many arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Addresses:
    """A table of numbers on the device. What is noted during a capture of a CUDA graph gets there by `settle`."""

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        self.table = torch.zeros(rows, columns, dtype=torch.long, device=device)
        self._there: list[list[int] | None] = [None] * rows
        self._noted: dict[int, list[int]] = {}

    def note(self, row: int, values: Sequence[int]) -> Tensor:
        """Writes a row, as soon as possible, and returns it."""
        self._noted[row] = list(values)
        if not (self.table.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.settle()
        return self.table[row]

    def settle(self) -> None:
        for row, values in self._noted.items():
            if self._there[row] != values:  # a copy makes the device wait for the host
                self.table[row].copy_(torch.tensor(values))
                self._there[row] = values
        self._noted = {}
