"""Orthogonal matrices: within every head for any shape; between heads only for the global one."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.model.orthogonal import DRAW


def draw(source: str, d_model: int, num_heads: int, seed: int = 0) -> torch.Tensor:
    return DRAW[source](d_model, num_heads, torch.Generator().manual_seed(seed))


@st.composite
def shapes(build: st.DrawFn) -> tuple[int, int]:
    heads, d_head = build(st.integers(1, 16)), build(st.integers(1, 24))
    return heads * d_head, heads


@settings(deadline=None)
@given(shapes(), st.sampled_from(["headwise", "global"]), st.integers(0, 2**62))
def test_every_head_is_orthonormal(shape: tuple[int, int], source: str, seed: int) -> None:
    d_model, num_heads = shape
    weight = draw(source, d_model, num_heads, seed)
    assert weight.dtype == torch.float32
    for head in weight.view(num_heads, -1, d_model):
        torch.testing.assert_close(head @ head.T, torch.eye(len(head)), atol=1e-5, rtol=0)


def between_heads(weight: torch.Tensor, num_heads: int) -> float:
    """The greatest product between rows of different heads."""
    products = (weight @ weight.T).abs()
    d_head = len(weight) // num_heads
    for h in range(num_heads):
        products[h * d_head : (h + 1) * d_head, h * d_head : (h + 1) * d_head] = 0
    return products.max().item()


def test_products_between_heads_tell_headwise_from_global() -> None:
    assert between_heads(draw("global", 64, 4), 4) < 1e-5
    assert between_heads(draw("headwise", 64, 4), 4) > 0.2


def test_signs_of_the_columns_are_even() -> None:
    """Without the correction by R's diagonal, LAPACK's QR gives the first entry of a column one sign far too often."""
    firsts = torch.stack([draw("global", 8, 1, seed)[:, 0] for seed in range(500)])
    assert 0.4 < (firsts > 0).float().mean().item() < 0.6


def test_matched_has_the_scale_of_headwise_and_normal_has_not() -> None:
    rows = {source: draw(source, 256, 4).norm(dim=1).mean().item() for source in ("matched", "headwise", "normal")}
    assert abs(rows["matched"] - rows["headwise"]) < 0.02
    assert abs(rows["normal"] - 0.02 * 16) < 0.01
