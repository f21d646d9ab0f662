"""The computed cost, against what PyTorch counts and what the model has."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from oelm.config import Model, RunConfig
from oelm.model.cost import count_parameters, step_cost
from oelm.model.gpt import GPT

SHAPE = Model(vocab_size=101, d_model=48, num_layers=3, num_heads=4, d_ff=96, seq_len=24)


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_parameters_are_those_of_the_model(positions: str) -> None:
    shape = replace(SHAPE, positions=positions)
    assert count_parameters(shape) == sum(p.numel() for p in GPT(shape, 0).parameters())


@pytest.mark.parametrize("name", ["baseline", "oelm_v2", "q=headwise,k=normal+trained"])
def test_matrix_work_is_what_pytorch_counts(name: str) -> None:
    """All but attention, which PyTorch counts as the full square and whose backward it counts with a recomputation."""
    shape = replace(SHAPE, model_type=name)
    model = GPT(shape, 0)
    tokens = torch.zeros(2, shape.seq_len, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(tokens, tokens).backward()
    counted = sum(
        flops for op, flops in counter.get_flop_counts()["Global"].items() if "mm" in str(op) and "bmm" not in str(op)
    )
    computed = sum(part.total for part in step_cost(shape, 2).parts if part.name != "attention")
    assert computed == counted


def test_freezing_medium_512_saves_what_the_arithmetic_says() -> None:
    frozen, trained = (
        step_cost(RunConfig.make(preset="medium-512", model_type=name), 8) for name in ("oelm_v2", "baseline")
    )
    assert (frozen.trainable, frozen.frozen) == (41_751_040, 3_145_728)
    assert (trained.flops - frozen.flops) / trained.flops == pytest.approx(0.0227, abs=1e-4)
    assert trained.optimizer_bytes - frozen.optimizer_bytes == 8 * 3_145_728
