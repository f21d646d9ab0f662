"""Head-wise and global orthogonal matrices: the one new idea, beside the Gaussians that they are judged against.

What DRAW names, but for the shuffle, returns a projection's weight as nn.Linear stores it, (out, in), so head h owns
the rows h·d_head … (h+1)·d_head; thin: heads so many times narrower. Draws come from the caller's CPU generator and
are factorised in double precision.
"""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

INIT_STD = 0.02


def orthonormal_columns(rows: int, columns: int, generator: Generator) -> Tensor:
    """A (rows, columns) matrix with orthonormal columns, uniform over all such (Haar)."""
    gaussian = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    # QR leaves each column's sign to the implementation; R's diagonal made positive fixes it and makes q Haar.
    signs = torch.where(r.diagonal() < 0, -1.0, 1.0)
    return torch.mul(q, signs)


def gaussian(rows: int, columns: int, std: float, generator: Generator) -> Tensor:
    """A (rows, columns) matrix of independent normal entries."""
    return torch.randn(rows, columns, generator=generator).mul(std)


def headwise(d_model: int, num_heads: int, generator: Generator, thin: int = 1) -> Tensor:
    """Each head an isometry of its own: rows orthonormal within a head, heads independent of each other."""
    d_head = d_model // num_heads // thin
    heads = [orthonormal_columns(d_model, d_head, generator).T for _ in range(num_heads)]
    return torch.cat(heads).float()


def global_orthogonal(d_model: int, num_heads: int, generator: Generator, thin: int = 1) -> Tensor:
    """One orthogonal matrix cut into heads: rows of different heads are orthogonal to each other, too."""
    return orthonormal_columns(d_model, d_model // thin, generator).T.contiguous().float()


def matched(d_model: int, num_heads: int, generator: Generator, thin: int = 1) -> Tensor:
    """Gaussian rows of norm one on average, as the orthogonal rows have exactly."""
    return gaussian(d_model // thin, d_model, d_model**-0.5, generator)


def normal(d_model: int, num_heads: int, generator: Generator, thin: int = 1) -> Tensor:
    """GPT-2's initialisation, whatever the width."""
    return gaussian(d_model // thin, d_model, INIT_STD, generator)


def shuffle(d_model: int, num_heads: int, generator: Generator, thin: int = 1) -> Tensor:
    """A signed permutation as one vector: entry i is ±(1 + the channel that output i reads)."""
    signs = torch.randint(0, 2, (d_model,), generator=generator) * 2 - 1
    return (signs * (1 + torch.randperm(d_model, generator=generator))).float()


DRAW: dict[str, Callable[..., Tensor]] = {
    "normal": normal,
    "headwise": headwise,
    "global": global_orthogonal,
    "matched": matched,
    "shuffle": shuffle,
}
