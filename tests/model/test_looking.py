"""What attention looks at, measured on patterns and models of which the answer is known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from oelm.config import Model
from oelm.model import looking
from oelm.model.gpt import GPT

SHAPE = Model(vocab_size=101, d_model=48, num_layers=3, num_heads=4, d_ff=96, seq_len=24)


class Looking(GPT):
    """A model whose heads look where they are told: a number of tokens back; where there are not so many, at itself."""

    def __init__(self, back: list[int]) -> None:
        super().__init__(SHAPE, seed=0)
        self._back = back

    def patterns(self, tokens: Tensor) -> Iterator[Tensor]:
        length = tokens.shape[1]
        places = torch.arange(length)
        for _ in range(2):
            pattern = torch.zeros(len(tokens), len(self._back), length, length)
            for head, back in enumerate(self._back):
                pattern[:, head, places, torch.where(places < back, places, places - back)] = 1
            yield pattern


def test_heads_get_the_scores_of_where_they_look() -> None:
    model = Looking([0, 1, 11, 12])
    tokens = torch.arange(24)[None]
    assert looking.previous_token_scores(model, tokens) == [[0, 1, 0, 0]] * 2
    assert looking.induction_scores(model) == [[0, 0, 1, 0]] * 2


def test_an_untrained_model_looks_everywhere_alike() -> None:
    model = GPT(SHAPE, seed=0)
    uniform = sum(1 / (place + 1) for place in range(1, 24)) / 23
    scores = looking.previous_token_scores(model, torch.arange(24)[None])
    assert torch.tensor(scores).flatten().tolist() == pytest.approx([uniform] * 12, rel=0.05)
    second_half = sum(1 / (place + 1) for place in range(12, 24)) / 12
    scores = looking.induction_scores(model)
    assert torch.tensor(scores).flatten().tolist() == pytest.approx([second_half] * 12, rel=0.05)
