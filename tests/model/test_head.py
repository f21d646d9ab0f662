"""The loss in pieces is PyTorch's cross-entropy, and so are its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oelm.model import head
from oelm.model.head import mean_loss


def both(hidden: Tensor, weight: Tensor, targets: Tensor) -> list[tuple[Tensor, ...]]:
    """Loss and gradients by ours and by PyTorch's."""
    found = []
    for in_pieces in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        loss = mean_loss(h, w, targets) if in_pieces else F.cross_entropy(F.linear(h, w), targets)
        found.append((loss.detach(), *torch.autograd.grad(3 * loss, (h, w))))
    return found


@settings(deadline=None, max_examples=25)
@given(rows=st.integers(1, 700), vocabulary=st.integers(2, 3000), scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_it_is_cross_entropy_whatever_the_shape(rows: int, vocabulary: int, scale: float) -> None:
    """In double precision, where the two orders of adding up differ by next to nothing."""
    torch.manual_seed(rows)
    hidden, weight = torch.randn(rows, 8).double(), scale * torch.randn(vocabulary, 8).double()
    ours, theirs = both(hidden, weight, torch.randint(vocabulary, (rows,)))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_rows_without_a_target_do_not_count() -> None:
    torch.manual_seed(0)
    targets = torch.randint(50, (300,))
    targets[::3] = -100
    ours, theirs = both(torch.randn(300, 8), torch.randn(50, 8), targets)
    torch.testing.assert_close(ours, theirs)


def test_mixed_precision_is_left_to_pytorch() -> None:
    hidden, weight = torch.randn(20, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss = mean_loss(hidden, weight, torch.zeros(20, dtype=torch.long))
        wanted = F.cross_entropy(F.linear(hidden, weight).float(), torch.zeros(20, dtype=torch.long))
    torch.testing.assert_close(loss, wanted)


def test_no_more_logits_than_said_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "FEWEST_ROWS", 4)
    monkeypatch.setattr(head, "LOGITS", 2000)
    sizes: list[int] = []
    linear = F.linear

    def counted(x: Tensor, weight: Tensor) -> Tensor:
        sizes.append(len(x) * len(weight))
        return linear(x, weight)

    monkeypatch.setattr("oelm.model.head.F.linear", counted)
    mean_loss(torch.randn(100, 8, requires_grad=True), torch.randn(1000, 8), torch.zeros(100, dtype=torch.long))
    assert sizes == [4000] * 25
