"""One side of attention: what each part of a variant does to it, and what it is at birth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from oelm import variants
from oelm.config import Model
from oelm.grammar import PARTS
from oelm.model import looking
from oelm.model.cost import trained_share
from oelm.model.gpt import GPT, Block
from oelm.model.projection import Projection

SHAPE = Model(vocab_size=101, d_model=48, num_layers=3, num_heads=4, d_ff=96, seq_len=24)
EVERYTHING = "headwise+heads(50%)+shift(2)+core+lowrank(5)+residual(3)+gain+bias+temperature"


def query(spec: str, lively: bool = False, shape: Model = SHAPE) -> Projection:
    """Q of the first layer; lively: everything that trains has moved."""
    model = GPT(replace(shape, model_type=spec), seed=0)
    block = model.blocks[0]
    assert isinstance(block, Block)
    if lively:
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in block.attention.q.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape) * 0.3)
    return block.attention.q


def stream() -> torch.Tensor:
    return torch.randn(2, 7, SHAPE.d_model, generator=torch.Generator().manual_seed(2))


def flat(heads: torch.Tensor) -> torch.Tensor:
    return heads.transpose(1, 2).flatten(2)


CORRECTIONS = ["shift", "core", "lowrank(4)", "residual(4)", "gain", "bias", "temperature"]


@pytest.mark.parametrize("spec", [f"{s}+{c}" for s in ("headwise", "normal+trained") for c in CORRECTIONS])
def test_every_correction_begins_as_if_it_were_not_there(spec: str) -> None:
    source = spec.rpartition("+")[0]
    torch.testing.assert_close(query(spec)(stream()), query(source)(stream()))


def test_frozen_and_trained_heads_are_of_one_draw() -> None:
    assert torch.equal(query("headwise+heads(50%)")(stream()), query("headwise")(stream()))


def test_all_parts_together_are_what_the_formula_says() -> None:
    x, side = stream(), query(EVERYTHING, lively=True)
    named = dict(side.named_parameters())
    before, long_before = (F.pad(x, (0, 0, back, 0))[:, : x.shape[1]] for back in (1, 2))
    mixed = x + named["shift1"] * (before - x) + named["shift2"] * (long_before - x)
    whole = torch.cat([side.weight, side.free])
    base = (mixed @ whole.T).view(2, 7, 4, 12)
    cored = (base + torch.stack([base[:, :, h] @ side.core[h].T for h in range(4)], dim=2)).flatten(2)
    low = mixed @ named["lowrank_down"].T @ named["lowrank_up"].T
    bent = F.gelu(mixed @ named["residual_down"].T) @ named["residual_up"].T
    expected = (cored + low + bent) * side.gain + side.bias
    expected = (expected.view(2, 7, 4, 12) * side.temperature[:, None]).flatten(2)
    torch.testing.assert_close(flat(side(x)), expected, rtol=1e-4, atol=1e-5)


def test_a_shift_looks_back_only() -> None:
    x, side = stream(), query("headwise+shift(2)", lively=True)
    changed = x.clone()
    changed[:, 4] += 1
    moved = (flat(side(x)) - flat(side(changed))).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.tolist() == [False] * 4 + [True, True, True]


def test_a_share_of_the_heads_is_frozen() -> None:
    model = GPT(replace(SHAPE, model_type="headwise+heads(25%)"), seed=0)
    side = query("headwise+heads(25%)")
    assert (side.weight.requires_grad, side.free.requires_grad) == (False, True)
    assert (len(side.weight), len(side.free)) == (12, 36)
    assert sum(p.numel() for p in model.frozen().values()) == 2 * 3 * 12 * 48


def test_only_some_layers_are_frozen() -> None:
    model = GPT(replace(SHAPE, model_type="headwise+layers(1-2)"), seed=0)
    assert {name.split(".")[1] for name in model.frozen()} == {"1", "2"}


@pytest.mark.parametrize("source", ["headwise", "global", "matched", "shuffle"])
def test_k_can_have_the_frozen_matrix_of_q(source: str) -> None:
    """The one that Q has anyway, and another in each layer."""
    tied, apart = (GPT(replace(SHAPE, model_type=f"{source}{more}"), seed=0).frozen() for more in (",k+tied", ""))
    pairs = [(tied[name], tied[name.replace(".q.", ".k.")]) for name in tied if ".q." in name]
    assert len(pairs) == SHAPE.num_layers
    assert all(torch.equal(q, k) for q, k in pairs)
    assert not torch.equal(pairs[0][0], pairs[1][0])
    assert all(torch.equal(tied[name], apart[name]) == (".q." in name) for name in tied)


def test_a_gain_may_begin_below_one() -> None:
    assert query("identity+gain(0.3)").gain.tolist() == pytest.approx([0.3] * 48)
    assert query("identity+gain").gain.tolist() == [1.0] * 48


def test_thin_keys_are_narrower_and_attention_still_works() -> None:
    for positions in ("learned", "rope"):
        shape = replace(SHAPE, model_type="thin_keys", positions=positions, d_model=64)
        model = GPT(shape, seed=0)
        tokens = torch.zeros(2, 9, dtype=torch.long)
        assert model(tokens).shape == (2, 9, 101)
    assert query("headwise+thin(2)").weight.shape == (24, 48)
    rows = query("headwise+thin(2)").weight.view(4, 6, 48)
    torch.testing.assert_close(rows @ rows.transpose(1, 2), torch.eye(6).expand(4, 6, 6), atol=1e-5, rtol=0)


def test_zero_looks_everywhere_alike() -> None:
    model = GPT(replace(SHAPE, model_type="zero"), seed=0)
    entropies = looking.entropies(model, torch.arange(24)[None])
    uniform = sum(torch.tensor(float(t)).log().item() for t in range(1, 25)) / 24
    assert entropies == pytest.approx([uniform] * 3, rel=1e-4)


@pytest.mark.parametrize("part", ["lowrank(6)", "residual(6)"])
def test_over_nothing_a_correction_begins_at_the_scale_of_a_matrix(part: str) -> None:
    shape = replace(SHAPE, d_model=256)
    up, down = (getattr(query(f"zero+{part}", shape=shape), f"{part[:-3]}_{end}") for end in ("up", "down"))
    assert (up @ down).norm(dim=1).mean().item() == pytest.approx(1, rel=0.2)
    learns = GPT(replace(SHAPE, model_type=f"zero+{part}"), seed=0)
    tokens = torch.arange(24)[None] % 7
    learns(tokens, tokens).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in learns.named_parameters() if "_up" in n)


@pytest.mark.parametrize(
    ("spec", "share"),
    [
        ("baseline", 1.0),
        ("oelm_v2", 0.0),
        ("q=headwise,k=normal+trained", 0.5),
        ("headwise+lowrank(6)", 2 * 6 / 48),
        ("headwise+lowrank(6)+thin(2)", 1.5 * 6 / 48),
        ("headwise+shift+gain+bias", 3 / 48),
        ("headwise+core", 12 / 48),
        ("headwise+heads(25%)", 0.75),
        ("headwise+layers(0)", 2 / 3),
        ("normal+freeze(30%)", 1.0),
        ("thin_keys", 0.25),
    ],
)
def test_the_trained_share_counts_what_ever_trains(spec: str, share: float) -> None:
    assert trained_share(replace(SHAPE, model_type=spec)) == pytest.approx(share)


def test_a_named_variant_can_have_every_part() -> None:
    """No part is known to the grammar alone."""
    of_both = ("trained", "freeze", "thaw", "every", "layers", "thin", "tied", "rate", "vectors")
    parts = {name for name in PARTS if name not in of_both}
    assert all(part in EVERYTHING for part in parts)
    assert variants.parse(EVERYTHING).q.corrected
