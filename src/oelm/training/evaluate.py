"""Scores on held-out tokens, and what attention and its matrices look like at that moment."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from oelm.data.batches import validation_windows
from oelm.model import looking
from oelm.model.gpt import GPT
from oelm.model.querykey import place_of
from oelm.training.step import Engine

ENTROPY_SEQUENCES = 4


class StopAskedError(Exception):
    """Scoring was broken off, since the run is to stop."""


def evaluate(
    engine: Engine, tokens: npt.NDArray[Any], limit: int | None, stop_asked: Callable[[], bool] = lambda: False
) -> tuple[float, int]:
    """Mean cross-entropy over the first `limit` tokens (None: all), and how many were scored.

    The windows are shared out over the processes in large batches; the same tokens are scored however many there are.
    """
    world, seq_len = engine.world, engine.config.seq_len
    at_once = max(1, engine.scored_tokens // seq_len)
    windows = validation_windows(tokens, seq_len, limit)[world.rank :: world.size]
    total, count = torch.zeros((), dtype=torch.float64, device=world.device), 0
    for length, group in groupby(windows, key=lambda window: window[1]):
        starts = [start for start, _ in group]
        for first in range(0, len(starts), at_once):
            if stop_asked():
                raise StopAskedError
            batch = np.stack([tokens[s : s + length + 1] for s in starts[first : first + at_once]]).astype(np.int64)
            total += engine.score(engine.to_device(batch[:, :-1]), engine.to_device(batch[:, 1:]))
            count += batch[:, 1:].size
    loss_sum, scored = world.sum([total.item(), float(count)])
    return loss_sum / scored, int(scored)


def diagnose(model: GPT, births: dict[str, Tensor], tokens: npt.NDArray[Any]) -> dict[str, list[float]]:
    """Per layer: attention entropy (nats) on fixed sequences, and how far Q and K have moved from their birth."""
    model.eval()
    entropy = looking.entropies(model, _sequences(model, tokens))
    model.train()
    return {"attention_entropy": entropy, "q_drift": _drift(model, births, "q"), "k_drift": _drift(model, births, "k")}


def head_scores(model: GPT, tokens: npt.NDArray[Any]) -> dict[str, list[list[float]]]:
    """Per layer and head: how far it is a previous-token head, and an induction head."""
    model.eval()
    scores = {
        "previous_token": looking.previous_token_scores(model, _sequences(model, tokens)),
        "induction": looking.induction_scores(model),
    }
    model.train()
    return scores


def _sequences(model: GPT, tokens: npt.NDArray[Any]) -> Tensor:
    """The first few of the held-out tokens, the same ones each time."""
    length = model.shape.seq_len
    count = min(ENTROPY_SEQUENCES, len(tokens) // length)
    sequences = np.asarray(tokens[: count * length]).reshape(count, length).astype(np.int64)
    return torch.from_numpy(sequences).to(model.tokens.weight.device)


def _drift(model: GPT, births: dict[str, Tensor], side: str) -> list[float]:
    """How far a side has moved in each layer in which it has a matrix, relative to its norm at birth."""
    moved: dict[int, list[Tensor]] = {}
    for name, weight in model.matrices().items():
        place, birth = place_of(name), births[name].to(weight.device)
        if place and place.side == side:
            moved.setdefault(place.layer, []).append(torch.stack([(weight.detach() - birth).norm(), birth.norm()]))
    norms = (torch.stack(parts).norm(dim=0).tolist() for parts in moved.values())
    return [distance / size for distance, size in norms]
