"""Dropout as a pure function of (seed, sequence, place): the same mask on every engine, device and number of processes.

A sequence's number counts all sequences of a run (step · batch_size + its row), so neither micro-steps nor ranks change
what is dropped, and a resumed run drops what the first would have.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

WORD = 0xFFFF_FFFF


class Dropout(nn.Module):
    """Zeroes a share of the activations at one place of the model, and scales the rest."""

    key: Tensor

    def __init__(self, share: float, seed: int, place: str) -> None:
        super().__init__()
        self.share = share
        key = int.from_bytes(hashlib.sha256(f"{seed}/dropout/{place}".encode()).digest()[:4], "big")
        # A tensor, so that a compiler sees no difference between the layers of a model.
        self.register_buffer("key", torch.tensor(key), persistent=False)

    def forward(self, x: Tensor, rows: Tensor | None) -> Tensor:
        """x: (batch, …); rows: the sequences' numbers, (batch,)."""
        if not self.active:
            return x
        if rows is None:
            raise ValueError("a model with dropout trains on numbered sequences: pass rows")
        kept = _bits(x.shape, rows, self.key) >= int(self.share * 2**32)
        return x * kept / (1 - self.share)

    @property
    def active(self) -> bool:
        return self.training and self.share > 0


def _bits(shape: torch.Size, rows: Tensor, key: Tensor) -> Tensor:
    """32 random bits per element. Two words per row and two rounds: no two rows' streams are shifts of each other."""
    first = _mix(_mix((rows & WORD) ^ key) ^ (rows >> 32))
    second = _mix(first ^ key)
    elements = torch.arange(shape[1:].numel(), device=rows.device)
    bits = _mix((_mix(elements ^ first[:, None]) + second[:, None]) & WORD)
    return bits.view(shape)


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit words that scatters them; the multiplier below 2³¹ keeps products within int64."""
    for _ in range(2):
        x = (((x >> 16) ^ x) * 0x45D9F3B) & WORD
    return (x >> 16) ^ x
