"""The model: exact sizes, the reference's logits and gradients, weights shared between variants, frozen matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from oelm import variants
from oelm.config import Model, RunConfig
from oelm.model import looking
from oelm.model.attention import Attention
from oelm.model.gpt import GPT

SMALL = Model(vocab_size=101, d_model=48, num_layers=3, num_heads=4, d_ff=96, seq_len=24, positions="learned")


@pytest.mark.parametrize(("variant", "trainable"), [("baseline", 44_896_768), ("oelm_v2", 41_751_040)])
def test_medium_512_has_exactly_the_studys_parameters(variant: str, trainable: int) -> None:
    model = GPT(RunConfig(preset="medium-512", model_type=variant), seed=0)
    assert sum(p.numel() for p in model.parameters()) == 44_896_768
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == trainable


def reference_of(model: GPT) -> GPT2LMHeadModel:
    """transformers' GPT-2 with our weights in its places."""
    shape = model.shape
    reference = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape.vocab_size,
            n_positions=shape.seq_len,
            n_embd=shape.d_model,
            n_layer=shape.num_layers,
            n_head=shape.num_heads,
            n_inner=shape.d_ff,
            activation_function="gelu",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )
    ours = dict(model.named_parameters())
    with torch.no_grad():
        for name, theirs in reference.named_parameters():
            theirs.copy_(mapped(name, ours, theirs))
    return reference


def mapped(name: str, ours: Mapping[str, torch.Tensor], theirs: torch.Tensor) -> torch.Tensor:
    """Our tensor for one of theirs: their linear layers are transposed, their Q, K and V one, with biases we lack."""
    whole = {"transformer.wte.weight": "tokens.weight", "transformer.wpe.weight": "positions.weight"}
    if name in whole:
        return ours[whole[name]]
    if name.startswith("transformer.ln_f"):
        return ours[name.replace("transformer.ln_f", "norm")]
    _, _, layer, part = name.split(".", 3)
    block = f"blocks.{layer}."
    if part == "attn.c_attn.weight":
        return torch.cat([ours[f"{block}attention.{side}.weight"] for side in "qkv"]).T
    if part in ("attn.c_attn.bias", "attn.c_proj.bias"):
        return torch.zeros_like(theirs)
    places = {
        "attn.c_proj": "attention.o",
        "mlp.c_fc": "mlp.up",
        "mlp.c_proj": "mlp.down",
        "ln_1": "norm1",
        "ln_2": "norm2",
    }
    place, kind = part.rsplit(".", 1)
    tensor = ours[f"{block}{places[place]}.{kind}"]
    return tensor.T if tensor.ndim == 2 else tensor


def batch(shape: Model = SMALL) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(shape.vocab_size, (3, shape.seq_len + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def with_lively_weights(model: GPT) -> GPT:
    """Larger weights than at birth, so that attention and biases matter in what is compared."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model


def test_logits_equal_those_of_transformers() -> None:
    model = with_lively_weights(GPT(SMALL, seed=0))
    inputs, _ = batch()
    theirs = reference_of(model)(inputs).logits
    torch.testing.assert_close(model(inputs), theirs, atol=1e-4, rtol=0)


def test_gradients_of_a_step_equal_those_of_transformers() -> None:
    model = with_lively_weights(GPT(SMALL, seed=0))
    reference = reference_of(model)
    inputs, targets = batch()
    model(inputs, targets).backward()
    logits: torch.Tensor = reference(inputs).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    torch.autograd.backward(loss)
    ours = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert len(ours) == len(list(model.parameters()))
    for name, theirs in reference.named_parameters():
        assert theirs.grad is not None
        if name.endswith(("attn.c_attn.bias", "attn.c_proj.bias")):
            continue  # we have no such parameter
        torch.testing.assert_close(mapped(name, ours, theirs), theirs.grad, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", [n for n in variants.NAMED if n != "baseline"])
def test_variants_of_a_seed_differ_in_q_and_k_alone(name: str) -> None:
    baseline = dict(GPT(SMALL, seed=3).named_parameters())
    variant = GPT(replace(SMALL, model_type=name), seed=3)
    for tensor_name, tensor in variant.named_parameters():
        if ".attention.q." not in tensor_name and ".attention.k." not in tensor_name:
            assert torch.equal(tensor, baseline[tensor_name]), tensor_name
    sides = {"q": variants.parse(name).q, "k": variants.parse(name).k}
    frozen = {f"attention.{side}.{spec.tensor}" for side, spec in sides.items() if spec.tensor and not spec.trained}
    assert {tensor_name.split(".", 2)[2] for tensor_name in variant.frozen()} == frozen


def test_the_random_control_starts_where_the_baseline_starts() -> None:
    baseline = dict(GPT(SMALL, seed=3).named_parameters())
    for name, tensor in GPT(replace(SMALL, model_type="oelm_random"), seed=3).matrices().items():
        assert torch.equal(tensor, baseline[name])


def test_one_side_can_be_frozen() -> None:
    model = GPT(replace(SMALL, model_type="q=headwise,k=normal+trained"), seed=0)
    assert set(model.frozen()) == {f"blocks.{i}.attention.q.weight" for i in range(3)}


def test_another_seed_gives_other_weights() -> None:
    one, other = GPT(SMALL, seed=0), GPT(SMALL, seed=1)
    assert not torch.equal(one.tokens.weight, other.tokens.weight)


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_nothing_looks_ahead(positions: str) -> None:
    model = with_lively_weights(GPT(replace(SMALL, positions=positions), seed=0))
    inputs, _ = batch()
    changed = inputs.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % SMALL.vocab_size
    torch.testing.assert_close(model(inputs)[:, :12], model(changed)[:, :12])
    assert not torch.allclose(model(inputs)[:, 12:], model(changed)[:, 12:])


def test_a_short_sequence_is_scored_like_the_start_of_a_long_one() -> None:
    for positions in ("learned", "rope"):
        model = with_lively_weights(GPT(replace(SMALL, positions=positions), seed=0))
        inputs, _ = batch()
        torch.testing.assert_close(model(inputs[:, :7]), model(inputs)[:, :7], atol=1e-5, rtol=1e-5)


def test_entropy_lies_between_nothing_and_uniform() -> None:
    entropies = looking.entropies(GPT(SMALL, seed=0), batch()[0])
    uniform = sum(math.log(t) for t in range(1, SMALL.seq_len + 1)) / SMALL.seq_len
    assert len(entropies) == SMALL.num_layers
    assert all(0 < entropy <= uniform + 1e-4 for entropy in entropies)
    assert entropies[0] == pytest.approx(uniform, rel=0.01)  # at birth, attention is almost uniform


def first_attention(model_type: str) -> Attention:
    model = GPT(replace(SMALL, model_type=model_type), seed=0)
    return next(module for module in model.modules() if isinstance(module, Attention))


def test_a_shuffle_is_an_orthogonal_matrix_without_the_product() -> None:
    heads = first_attention("oelm_shuffle").q(torch.eye(SMALL.d_model)[None])
    matrix = heads.transpose(1, 2).flatten(2)[0].T
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(SMALL.d_model))
    assert set(matrix.unique().tolist()) == {-1.0, 0.0, 1.0}


def test_an_identity_lets_each_head_read_its_slice_of_the_stream() -> None:
    x = torch.randn(2, 5, SMALL.d_model)
    q, _, _ = first_attention("identity_q").project(x, None)
    assert torch.equal(q.transpose(1, 2).flatten(2), x)
