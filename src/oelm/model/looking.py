"""What attention looks at: how widely, and whether its heads do what in-context learning is made of."""

from __future__ import annotations

import torch
from torch import Tensor

from oelm.model.gpt import GPT

LONGEST = 512  # tokens that are looked at together: a pattern is as large as their square


def entropies(model: GPT, tokens: Tensor) -> list[float]:
    """The mean entropy (nats) of attention in each layer."""
    found = [torch.special.entr(pattern).sum(-1).mean() for pattern in model.patterns(tokens[:, :LONGEST])]
    return [float(entropy) for entropy in torch.stack(found).tolist()]


def previous_token_scores(model: GPT, tokens: Tensor) -> list[list[float]]:
    """How much of its attention each head of each layer gives to the token before, on average."""
    return [_mean_of_diagonal(pattern, 1) for pattern in model.patterns(tokens[:, :LONGEST])]


def induction_scores(model: GPT, count: int = 4, seed: int = 0) -> list[list[float]]:
    """How much of its attention each head gives to the token that followed an earlier copy of the present one.

    Measured on the second half of random tokens that are said twice, where nothing else tells what comes next.
    """
    half = min(LONGEST, model.shape.seq_len) // 2
    generator = torch.Generator().manual_seed(seed)
    once = torch.randint(model.shape.vocab_size, (count, half), generator=generator)
    twice = torch.cat([once, once], dim=1).to(model.tokens.weight.device)
    return [_mean_of_diagonal(pattern[:, :, half:], half - 1, first=half) for pattern in model.patterns(twice)]


def _mean_of_diagonal(pattern: Tensor, back: int, first: int = 0) -> list[float]:
    """What each head gives to the token so far back, on average over the rows; the first of them is token `first`."""
    on_it = pattern.diagonal(first - back, dim1=2, dim2=3)  # those that would look before the beginning are not on it
    return [float(score) for score in on_it.mean(dim=(0, 2)).nan_to_num().tolist()]  # 0 where nothing is so far back
