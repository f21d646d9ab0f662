"""What stands in for a technique of ours in the ablation computes the same."""

from __future__ import annotations

import pytest
import torch

from benchmarks.ablation import WITHOUT, compiled_head_loss
from oelm.fast import working
from oelm.fast.loss import head_loss


@pytest.mark.parametrize("add", [False, True])
def test_the_compilers_output_layer_is_ours(add: bool) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(6, 8), torch.randn(64, 8)
    weight[61:] = 0  # padding
    targets = torch.randint(61, (6,))
    gradients = [torch.ones(64, 8), torch.ones(64, 8)]
    with torch.compiler.set_stance("force_eager"):
        ours, theirs = (
            function(hidden, weight, targets, 61, 0.5, gradient, add)
            for function, gradient in zip((head_loss, compiled_head_loss), gradients, strict=True)
        )
    torch.testing.assert_close(theirs, ours)
    torch.testing.assert_close(gradients[1], gradients[0])


def test_what_is_taken_away_is_what_the_engine_uses() -> None:
    with WITHOUT["without the fused output layer"]():
        assert working.__dict__["head_loss"] is compiled_head_loss
    assert working.__dict__["head_loss"] is head_loss
