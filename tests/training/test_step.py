"""A step: the same however it is cut or executed; frozen matrices without gradient, moments or decay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from oelm.config import RunConfig
from oelm.data.batches import Batches
from oelm.errors import UserError
from oelm.model.gpt import GPT
from oelm.training.step import Engine, build_optimizer, deterministic_kernels, open_engine
from oelm.training.world import World
from tests.conftest import needs

Tiny = Callable[..., RunConfig]
ALONE = World(0, 1, torch.device("cpu"))


def engine_after(config: RunConfig, steps: int) -> tuple[Engine, list[float]]:
    config = config.resolved(64)
    tokens = (np.arange(4000) ** 2 % 61).astype(np.uint16)
    data = Batches(tokens, config.seq_len, config.batch_size, config.seed)
    engine = open_engine(GPT(config, config.seed), config, ALONE, data)
    for step in range(steps):
        engine.step(step)
    return engine, [loss for loss, _ in engine.results()]


def run_steps(config: RunConfig, steps: int) -> tuple[GPT, list[float]]:
    engine, losses = engine_after(config, steps)
    return engine.model, losses


@pytest.mark.parametrize(("variant", "dropout"), [("baseline", 0.0), ("oelm_v2", 0.0), ("baseline", 0.2)])
def test_accumulation_changes_nothing(tiny: Tiny, variant: str, dropout: float) -> None:
    config = tiny(vocab_size=64, model_type=variant, dropout=dropout)
    _, whole = run_steps(config, 12)
    _, in_parts = run_steps(replace(config, accumulation=4), 12)
    assert in_parts == pytest.approx(whole, rel=1e-5)
    assert whole[-1] < whole[0]


@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_compiled_step_equals_the_eager_one(tiny: Tiny, accumulation: int) -> None:
    needs("compiler")
    config = tiny(vocab_size=64, model_type="oelm_v2", num_layers=1, max_steps=200)
    _, eager = run_steps(config, 200)
    _, compiled = run_steps(replace(config, engine="compile", accumulation=accumulation), 200)
    assert compiled == pytest.approx(eager, rel=1e-5)
    assert eager[-1] < 0.9 * eager[0]


def test_frozen_matrices_have_no_gradient_no_moments_and_no_decay(tiny: Tiny) -> None:
    config = tiny(vocab_size=64, model_type="oelm_v2", weight_decay=0.5, decay="all").resolved(64)
    born = {name: w.clone() for name, w in GPT(config, config.seed).matrices().items()}
    engine, _ = engine_after(config, 5)
    model, moments = engine.model, engine.moments()
    for name, weight in model.matrices().items():
        assert weight.grad is None
        assert torch.equal(weight, born[name])
        assert not any(key.startswith(name) for key in moments)
    assert "blocks.0.attention.v.weight.exp_avg" in moments
    value = "blocks.0.attention.v.weight"
    assert not torch.equal(model.get_parameter(value), GPT(config, config.seed).get_parameter(value))


@pytest.mark.parametrize("corrections", ["", "+lowrank(4)+residual(2)+shift+gain+core"])
def test_weight_gradients_of_frozen_matrices_are_not_computed(tiny: Tiny, corrections: str) -> None:
    """Counted in matrix products: two fewer per layer in the backward pass than when Q and K train."""

    def products(variant: str) -> int:
        config = tiny(vocab_size=64, model_type=variant).resolved(64)
        model = GPT(config, 0)
        tokens = torch.zeros(2, config.seq_len, dtype=torch.long)
        loss = model(tokens, tokens)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            loss.backward()
        return sum(event.count for event in profile.key_averages() if event.key == "aten::mm")

    assert products(f"headwise+trained{corrections}") - products(f"headwise{corrections}") == 2 * 2


@pytest.mark.parametrize(("decay", "shrinks"), [("matrices", False), ("all", True)])
def test_decay_reaches_biases_and_norms_only_under_all(tiny: Tiny, decay: str, shrinks: bool) -> None:
    config = tiny(vocab_size=64, decay=decay, weight_decay=50.0, positions="learned").resolved(64)
    model = GPT(config, 0)
    optimizer = build_optimizer(model, config)
    decays = {
        name: group["weight_decay"]
        for group in optimizer.param_groups
        for name, p in model.named_parameters()
        if any(p is q for q in group["params"])
    }
    assert decays["blocks.0.mlp.up.weight"] == 50.0
    assert (decays["norm.weight"] == 50.0) == shrinks
    assert (decays["blocks.0.mlp.up.bias"] == 50.0) == shrinks


def test_rates_go_by_side_and_layer(tiny: Tiny) -> None:
    """In the first step, AdamW moves every weight by its rate, decay apart."""
    fields = {"weight_decay": 0.0, "grad_clip": 0.0, "warmup_steps": 0, "num_layers": 3, "layer_lr": 4.0}
    config = tiny(
        vocab_size=64, model_type="q=normal+trained+rate(0.5),k=headwise+lowrank(4)+gain+rate(3)+vectors(10)", **fields
    )
    before = dict(GPT(config.resolved(64), config.seed).named_parameters())
    after, _ = run_steps(config, 1)
    moved = {n: (p - before[n]).abs().max().item() / config.max_lr for n, p in after.named_parameters()}
    for name, factor in {
        "tokens.weight": 1,
        "norm.weight": 1,
        "blocks.0.attention.v.weight": 1,
        "blocks.1.mlp.up.weight": 2,
        "blocks.2.attention.o.weight": 4,
        "blocks.0.attention.q.weight": 0.5,
        "blocks.2.attention.q.weight": 2,
        "blocks.1.attention.k.lowrank_up": 6,
        "blocks.0.attention.k.gain": 30,
        "blocks.1.attention.k.weight": 0,
    }.items():
        assert moved[name] == pytest.approx(factor, rel=1e-2), name


def test_dropout_is_a_function_of_seed_and_step(tiny: Tiny) -> None:
    config = tiny(vocab_size=64, dropout=0.3)
    torch.manual_seed(1)
    _, first = run_steps(config, 3)
    torch.manual_seed(2)
    _, second = run_steps(config, 3)
    assert first == second


def test_deterministic_kernels_are_refused_where_they_come_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UserError, match="before its process first uses the GPU"), deterministic_kernels("auto"):
        pass
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with deterministic_kernels("auto"):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
