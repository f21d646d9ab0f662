"""The computed cost, against what PyTorch counts and what the model has."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from oelm import variants
from oelm.config import Model, RunConfig
from oelm.model.cost import floor, shrunk_feed_forward, step_cost
from oelm.model.gpt import GPT

SHAPE = Model(vocab_size=101, d_model=48, num_layers=3, num_heads=4, d_ff=96, seq_len=24)


CORRECTED = "q=headwise+heads(50%)+shift(2)+core+lowrank(5),k=zero+residual(3)+gain+bias+temperature"


@pytest.mark.parametrize("positions", ["learned", "rope"])
@pytest.mark.parametrize("name", [*variants.NAMED, CORRECTED, "normal+freeze(10)+layers(0-1)"])
def test_parameters_are_those_of_the_model(positions: str, name: str) -> None:
    shape = replace(SHAPE, positions=positions, model_type=name)
    model, cost = GPT(shape, 0), step_cost(shape, 2)
    assert cost.parameters == sum(p.numel() for p in model.parameters())
    assert cost.frozen == sum(p.numel() for p in model.frozen().values())


@pytest.mark.parametrize("name", [*variants.NAMED, "q=headwise,k=normal+trained", CORRECTED])
def test_matrix_work_is_what_pytorch_counts(name: str) -> None:
    """All but attention, which PyTorch counts as the full square and whose backward it counts with a recomputation."""
    shape = replace(SHAPE, model_type=name)
    model = GPT(shape, 0)
    tokens = torch.zeros(2, shape.seq_len, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(tokens, tokens).backward()
    ours = ("aten.mm", "aten.addmm", "aten.bmm") if "core" in name else ("aten.mm", "aten.addmm")
    counted = sum(flops for op, flops in counter.get_flop_counts()["Global"].items() if str(op) in ours)
    computed = sum(part.total for part in step_cost(shape, 2).parts if part.name != "attention")
    assert computed == counted


@pytest.mark.parametrize("name", ["oelm_v2", "q=headwise,k=normal+trained", "headwise+lowrank(5)+shift", "thin_keys"])
def test_a_shrunk_baseline_trains_as_many_or_hardly_fewer(name: str) -> None:
    shape = replace(SHAPE, model_type=name)
    width = shrunk_feed_forward(shape)
    assert width is not None
    surplus = step_cost(shape, 1).trainable - step_cost(replace(SHAPE, d_ff=width), 1).trainable
    assert 0 <= surplus < 3 * (2 * 48 + 1)


@pytest.mark.parametrize("name", ["baseline", "headwise+thaw(5)"])
def test_a_variant_that_trains_no_fewer_has_no_shrunk_baseline(name: str) -> None:
    assert shrunk_feed_forward(replace(SHAPE, model_type=name)) is None


def test_freezing_medium_512_saves_what_the_arithmetic_says() -> None:
    frozen, trained = (
        step_cost(RunConfig(preset="medium-512", model_type=name), 8) for name in ("oelm_v2", "baseline")
    )
    assert (frozen.trainable, frozen.frozen) == (41_751_040, 3_145_728)
    assert (trained.flops - frozen.flops) / trained.flops == pytest.approx(0.0227, abs=1e-4)
    assert trained.optimizer_bytes - frozen.optimizer_bytes == 8 * 3_145_728


def test_the_floor_of_medium_512_falls_by_what_is_frozen_or_left_out() -> None:
    """At round rates: 800 TFLOP/s and 4 TB/s."""

    def seconds(name: str) -> float:
        return floor(RunConfig(preset="medium-512", model_type=name), 8, 800e12, 4e12, gpu=True).total

    one_product = 6 * 2 * 8 * 512 * 512**2 / 800e12
    updates = 32 * 6 * 512**2 / 4e12
    assert seconds("baseline") - seconds("oelm_v2") == pytest.approx(2 * one_product + 2 * updates)
    assert seconds("baseline") - seconds("identity_q") == pytest.approx(3 * one_product + updates)
    assert seconds("baseline") - seconds("oelm_shuffle") == pytest.approx(6 * one_product + 2 * updates)
    assert seconds("baseline") - seconds("q=normal+trained,k=normal+every(4)") == pytest.approx(
        3 / 4 * (one_product + updates)
    )
    assert 1.8e-3 < seconds("baseline") < 2.6e-3
