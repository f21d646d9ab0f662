"""The storybook needs attention: without the earlier sentences, a trained model loses much of what it knew."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
import torch.nn.functional as F

from oelm.config import RunConfig
from oelm.data.batches import open_corpus
from oelm.model.gpt import GPT
from oelm.sampling import open_model, run_tokenizer
from oelm.training.loop import fit


def stories(storybook: Path, end: int, count: int) -> list[list[int]]:
    """Held-out stories, as tokens."""
    found: list[list[int]] = [[]]
    for token in open_corpus(storybook, 0, 128).split("val").tolist():
        if token == end:
            found.append([])
        else:
            found[-1].append(token)
    return [story for story in found if story][:count]


def sentences(story: list[int], ends: set[int]) -> list[tuple[int, int]]:
    """(start, end) of the sentences of a story of at most 128 tokens."""
    story = story[:128]
    bounds = [0, *(i + 1 for i, token in enumerate(story) if token in ends), len(story)]
    return [(a, b) for a, b in itertools.pairwise(bounds) if b - a >= 2]


@torch.no_grad()
def losses(model: GPT, tokens: list[int]) -> torch.Tensor:
    """The loss of every token but the first."""
    logits = model(torch.tensor([tokens[:-1]]))[0]
    return F.cross_entropy(logits, torch.tensor(tokens[1:]), reduction="none")


def test_hiding_what_came_before_the_sentence_costs_at_least_a_tenth(storybook: Path, tmp_path: Path) -> None:
    config = RunConfig(
        preset="nano",
        data_path=str(storybook),
        out_dir=str(tmp_path),
        max_steps=600,
        max_lr=6e-3,
        val_interval=600,
        device="cpu",
    )
    folder = fit(config)
    model, tokenizer = open_model(folder), run_tokenizer(folder)
    ends = {token for token in range(tokenizer.vocab_size) if tokenizer.decode([token]).rstrip('"') in (".", "!", "?")}
    seen, hidden = [], []
    for story in stories(storybook, tokenizer.end_of_text, 100):
        with_context = losses(model, story[:129])
        for start, end in sentences(story, ends):
            seen.append(with_context[start : end - 1])
            hidden.append(losses(model, story[start:end]))
    known, alone = torch.cat(seen).mean().item(), torch.cat(hidden).mean().item()
    print(f"loss with the story so far {known:.4f}, with the sentence alone {alone:.4f}: {alone / known - 1:+.0%}")
    assert alone >= 1.1 * known
