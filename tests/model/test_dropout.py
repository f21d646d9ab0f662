"""Dropout: the share it says, independent masks, and none that depends on how a batch is cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oelm.model.dropout import Dropout


def mask(share: float = 0.5, seed: int = 0, place: str = "here", rows: list[int] | None = None) -> torch.Tensor:
    numbers = torch.tensor([0, 1, 2, 3] if rows is None else rows)
    dropped: torch.Tensor = Dropout(share, seed, place)(torch.ones(len(numbers), 64, 128), numbers)
    return dropped == 0


@given(st.floats(0.05, 0.9), st.integers(0, 2**40))
def test_it_drops_the_share_it_says_and_keeps_the_mean(share: float, seed: int) -> None:
    dropped = Dropout(share, seed, "here")(torch.ones(4, 64, 128), torch.arange(4))
    assert (dropped == 0).float().mean().item() == pytest.approx(share, abs=0.02)
    assert dropped.mean().item() == pytest.approx(1, abs=0.2)


@given(st.lists(st.integers(0, 2**45), min_size=1, max_size=4, unique=True))
def test_a_sequence_s_mask_is_its_own_whoever_else_is_in_the_batch(rows: list[int]) -> None:
    together = mask(rows=rows)
    for i, row in enumerate(rows):
        torch.testing.assert_close(mask(rows=[row])[0], together[i])


@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"place": "there"}, {"rows": [4, 5, 6, 7]}, {"rows": [2**32, 9, 10, 11]}]
)
def test_masks_of_other_seeds_places_and_sequences_are_unrelated(other: dict[str, object]) -> None:
    first, second = mask(), mask(**other)  # type: ignore[arg-type]
    assert (first == second).float().mean().item() == pytest.approx(0.5, abs=0.02)


def test_positions_within_a_sequence_are_unrelated() -> None:
    dropped = mask(rows=list(range(64))).float().flatten(1)
    for shift in (1, 2, 64, 128):
        agreement = (dropped[:, :-shift] == dropped[:, shift:]).float().mean().item()
        assert agreement == pytest.approx(0.5, abs=0.01)


def test_nothing_is_dropped_outside_training() -> None:
    layer = Dropout(0.5, 0, "here").eval()
    assert torch.equal(layer(torch.ones(2, 3), None), torch.ones(2, 3))


def test_a_training_model_with_dropout_wants_numbered_sequences() -> None:
    with pytest.raises(ValueError, match="pass rows"):
        Dropout(0.5, 0, "here")(torch.ones(2, 3), None)
