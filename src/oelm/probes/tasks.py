"""The tasks: sequences drawn from a seed, in which some tokens, the answers, follow from those before.

recall      pairs of key and value, then the keys once more, each followed by its value
induction   random tokens, said twice
hops        pairs (a, b), (b, c), … in random order, then questions: two steps on from a?
memory      facts that are always the same; nothing in the sequence tells them
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from oelm.data.batches import Batches, MicroBatch

Tokens = npt.NDArray[np.int64]
IGNORED = -100  # as a target: what PyTorch's cross-entropy leaves out

KEYS, VALUES, PAIRS = 32, 32, 16
SYMBOLS, CHAIN = 48, 12
FACTS, ALPHABET = 1024, 64


@dataclass(frozen=True)
class Task:
    """How a batch is written: (sequences, length) tokens, and at which places the answers stand, the same in all."""

    vocab_size: int
    length: int
    answers: tuple[int, ...]
    choices: int  # that an answer can be, before anything of the sequence is looked at
    write: Callable[[np.random.Generator, int], Tokens]


def _recall(draw: np.random.Generator, count: int) -> Tokens:
    keys = _distinct(draw, count, KEYS)[:, :PAIRS]
    values = draw.integers(KEYS, KEYS + VALUES, (count, PAIRS))
    order = _distinct(draw, count, PAIRS)
    asked, answers = (np.take_along_axis(each, order, axis=1) for each in (keys, values))
    return np.concatenate([_woven(keys, values), _woven(asked, answers)], axis=1)


def _induction(draw: np.random.Generator, count: int) -> Tokens:
    once = _distinct(draw, count, ALPHABET)[:, : ALPHABET // 2]
    return np.concatenate([once, once], axis=1)


def _hops(draw: np.random.Generator, count: int) -> Tokens:
    chain = _distinct(draw, count, SYMBOLS)[:, :CHAIN]  # a circle: the first follows the last
    told, asked = (_distinct(draw, count, CHAIN) for _ in range(2))
    one_on, two_on = (np.roll(chain, -steps, axis=1) for steps in (1, 2))
    pairs = _woven(*(np.take_along_axis(each, told, axis=1) for each in (chain, one_on)))
    question = np.full((count, CHAIN), SYMBOLS)
    questions = _woven(question, *(np.take_along_axis(each, asked, axis=1) for each in (chain, two_on)))
    return np.concatenate([pairs, questions], axis=1)


def _memory(draw: np.random.Generator, count: int) -> Tokens:
    world = np.random.default_rng(0)  # the same for all
    keys = np.stack(np.divmod(world.permutation(ALPHABET**2)[:FACTS], ALPHABET), axis=1)
    facts = np.concatenate([keys, world.integers(0, ALPHABET, (FACTS, 2))], axis=1)
    return np.asarray(facts[draw.integers(0, FACTS, (count, 16))].reshape(count, -1))


def _distinct(draw: np.random.Generator, count: int, size: int) -> Tokens:
    """Every number below `size` once in each row, in an order of its own."""
    return draw.permuted(np.tile(np.arange(size), (count, 1)), axis=1)


def _woven(*columns: Tokens) -> Tokens:
    """The first of each, then the second of each, …"""
    return np.stack(columns, axis=2).reshape(len(columns[0]), -1)


TASKS = {
    "recall": Task(KEYS + VALUES, 4 * PAIRS, tuple(range(2 * PAIRS + 1, 4 * PAIRS, 2)), VALUES, _recall),
    "induction": Task(ALPHABET, ALPHABET, tuple(range(ALPHABET // 2 + 1, ALPHABET)), ALPHABET, _induction),
    "hops": Task(SYMBOLS + 1, 5 * CHAIN, tuple(range(2 * CHAIN + 2, 5 * CHAIN, 3)), SYMBOLS, _hops),
    "memory": Task(ALPHABET, 64, tuple(i for i in range(64) if i % 4 >= 2), ALPHABET, _memory),
}


@dataclass(frozen=True)
class Exercises(Batches):
    """A task's sequences as the batches of a run: a function of seed and step; only the answers are targets."""

    task: Task

    @classmethod
    def of(cls, task: Task, batch_size: int, seed: int) -> Exercises:
        return cls(np.empty(0, dtype=np.int64), task.length - 1, batch_size, seed, task)

    def sequences(self, rows: npt.NDArray[np.int64]) -> MicroBatch:
        tokens = self.task.write(np.random.default_rng([self.seed, int(rows[0])]), len(rows))
        targets = np.full_like(tokens, IGNORED)
        places = list(self.task.answers)
        targets[:, places] = tokens[:, places]
        return MicroBatch(tokens[:, :-1], targets[:, 1:], rows)
