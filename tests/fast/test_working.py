"""The working layout computes what the logical model does: losses, gradients, updates, scores; on the CPU, in fp32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

from oelm.config import RunConfig
from oelm.data.batches import Batches
from oelm.fast.loss import head_loss
from oelm.fast.working import Working
from oelm.model.gpt import GPT
from oelm.training.schedule import learning_rate
from oelm.training.step import open_engine
from oelm.training.world import World
from tests.conftest import needs
from tests.fast.reference import clipped_adamw

Tiny = Callable[..., RunConfig]
VARIANTS = [
    "baseline",
    "oelm_v2",
    "q=headwise,k=normal+trained",
    "q=normal+trained,k=headwise",
    "oelm_shuffle",
    "identity_q",
    "thin_keys",
    "headwise+heads(50%)+shift(2)+core+lowrank(6)+residual(3)+gain+temperature",
    "q=normal+trained,k=headwise+shift",
    "q=headwise+lowrank(8)+layers(0),k=shuffle+shift+lowrank(8)",
    "q=zero+residual(4)+bias,k=identity+shift",
]


def data_of(config: RunConfig) -> Batches:
    tokens = (np.arange(4000) ** 2 % 61).astype(np.uint16)
    return Batches(tokens, config.seq_len, config.batch_size, config.seed)


def reference(config: RunConfig, steps: int) -> tuple[GPT, dict[str, torch.Tensor], list[tuple[float, float]]]:
    model = GPT(config, config.seed)
    engine = open_engine(model, config, World(0, 1, torch.device("cpu")), data_of(config))
    for step in range(steps):
        engine.step(step)
    return model, engine.moments(), engine.results()


def worked(config: RunConfig, steps: int) -> tuple[GPT, Working, list[tuple[float, float]]]:
    model = GPT(config, config.seed)
    working, data, results = Working(model, config, torch.float32), data_of(config), []
    for step in range(steps):
        loss = torch.zeros(())
        for micro, batch in enumerate(data.share(step, 0, 1, config.accumulation)):
            inputs, targets, rows = map(torch.from_numpy, batch)
            loss += working.gradients(inputs, targets, rows, 1 / config.tokens_per_step, micro)
        rate, betas = learning_rate(config, step), (config.beta1, config.beta2)
        norm = clipped_adamw(working.flat, working.gradient, rate, betas, config.grad_clip)
        results.append((loss.item() / config.tokens_per_step, norm.item()))
    return model, working, results


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "settings", [{}, {"accumulation": 4, "positions": "learned"}, {"decay": "all", "dropout": 0.2, "grad_clip": 0.0}]
)
def test_it_trains_as_the_logical_model_does(tiny: Tiny, variant: str, settings: dict[str, object]) -> None:
    agree(tiny(vocab_size=61, model_type=variant, **settings).resolved(61))


def test_it_does_so_where_q_and_k_are_slices_of_the_stream(tiny: Tiny) -> None:
    """With a bias of K, which only rotated positions let have an effect."""
    agree(tiny(vocab_size=61, model_type="identity+gain+bias,k+shift", positions="rope").resolved(61))


def agree(config: RunConfig) -> None:
    theirs, their_moments, expected = reference(config, 6)
    ours, working, results = worked(config, 6)
    assert results == [pytest.approx(pair, rel=1e-5) for pair in expected]
    for (name, weight), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-3, atol=1e-5, msg=name)
    moments = working.flat.moments()
    assert moments.keys() == their_moments.keys()
    assert all(moments[name].shape == tensor.shape for name, tensor in their_moments.items())


@pytest.mark.parametrize("variant", ["oelm_v2", "oelm_shuffle", VARIANTS[-4]])
def test_compiled_as_the_graph_engine_does_it_gives_the_same_gradient(tiny: Tiny, variant: str) -> None:
    needs("compiler")
    config = tiny(vocab_size=61, model_type=variant).resolved(61)
    inputs, targets, rows = map(torch.from_numpy, data_of(config).batch(0))
    plain, compiled = (Working(GPT(config, config.seed), config, torch.float32) for _ in range(2))
    compiled.compile(fullgraph=True)
    losses = [working.gradients(inputs, targets, rows, 1.0) for working in (plain, compiled)]
    torch.testing.assert_close(losses[1], losses[0])
    for ours, theirs in zip(compiled.gradient, plain.gradient, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_block_is_compiled_once_for_all_layers(tiny: Tiny) -> None:
    """But for the first, to which nothing has been said yet; with dropout, whose masks differ from layer to layer."""
    config = tiny(vocab_size=61, num_layers=5, dropout=0.1).resolved(61)
    working, counter = Working(GPT(config, config.seed), config, torch.float32), CompileCounter()
    working.compile(backend=counter)
    inputs, targets, rows = map(torch.from_numpy, data_of(config).batch(0))
    working.gradients(inputs, targets, rows, 1.0)
    assert counter.frame_count == 2
    again = Working(GPT(config, config.seed + 1), config, torch.float32)  # of the next run in this process
    again.compile(backend=counter)
    again.gradients(inputs, targets, rows, 1.0)
    assert counter.frame_count == 2


def test_a_frozen_matrix_is_in_no_group_and_does_not_move(tiny: Tiny) -> None:
    config = tiny(vocab_size=61, model_type="oelm_v2", weight_decay=0.5, decay="all").resolved(61)
    born = {name: w.clone() for name, w in GPT(config, config.seed).matrices().items()}
    model, working, _ = worked(config, 3)
    for name, weight in model.matrices().items():
        assert torch.equal(weight, born[name])
        assert f"{name}.exp_avg" not in working.flat.moments()


def test_the_working_copy_follows_weights_that_are_replaced(tiny: Tiny) -> None:
    config = tiny(vocab_size=61, model_type="oelm_v2").resolved(61)
    model, working, _ = worked(config, 3)
    other = GPT(config, seed=7)
    model.load_state_dict(other.state_dict())
    working.refresh()
    tokens = torch.arange(2 * config.seq_len).view(2, -1) % 61
    logits = other(tokens[:, :-1])
    expected = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(working.score(tokens[:, :-1], tokens[:, 1:]), expected)


def test_padding_of_the_vocabulary_stays_zero(tiny: Tiny) -> None:
    _, working, _ = worked(tiny(vocab_size=61).resolved(61), 5)
    table = working.flat.by_unit(working.flat.weights)[0]
    assert table.shape[0] == 64
    assert not table[61:].any()
    assert table[:61].any(dim=1).all()


def test_the_loss_of_a_padded_head_is_the_unpadded_one() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(20, 8), torch.randn(64, 8)
    targets = torch.randint(0, 50, (20,))
    h, w = hidden.clone().requires_grad_(), weight[:50].clone().requires_grad_()
    expected = F.cross_entropy(h @ w.T, targets, reduction="sum")
    expected.backward()  # type: ignore[no-untyped-call]
    gradient = torch.ones(64, 8)
    loss, by_hidden = head_loss(hidden, weight, targets, 50, 0.5, gradient, add=True)
    torch.testing.assert_close(loss, expected)
    assert h.grad is not None
    assert w.grad is not None
    torch.testing.assert_close(by_hidden, h.grad / 2)
    torch.testing.assert_close(gradient[:50], w.grad / 2 + 1)
    torch.testing.assert_close(gradient[50:], torch.ones(14, 8))


CORRECTED = "headwise+lowrank(4)+residual(2)+shift+gain"


@pytest.mark.parametrize(
    ("variant", "frozen"),
    [("headwise", 2), ("q=headwise,k=normal+trained", 1), (CORRECTED, 2), ("headwise+heads(50%)", 1)],
)
def test_weight_gradients_of_frozen_rows_are_not_computed(tiny: Tiny, variant: str, frozen: float) -> None:
    """Counted in the FLOPs of all matrix products of a step, which fall by just those; corrections or not."""

    def products(model_type: str) -> int:
        config = tiny(vocab_size=61, model_type=model_type).resolved(61)
        working = Working(GPT(config, config.seed), config, torch.float32)
        inputs, targets, rows = map(torch.from_numpy, data_of(config).batch(0))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_flops=True) as profile:
            working.gradients(inputs, targets, rows, 1.0)
        return sum(event.flops for event in profile.key_averages() if event.key in ("aten::mm", "aten::addmm"))

    config, trained = tiny(), variant.replace("headwise", "headwise+trained").replace("+heads(50%)", "")
    per_matrix = 2 * config.tokens_per_step * config.d_model**2
    assert products(trained) - products(variant) == frozen * config.num_layers * per_matrix
