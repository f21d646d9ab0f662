"""The tasks: every answer follows from what stands before it, or from the facts that are always the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.probes.tasks import CHAIN, IGNORED, PAIRS, SYMBOLS, TASKS, Exercises

COUNT = 5


def written(name: str, seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return TASKS[name].write(np.random.default_rng(seed), COUNT)


@pytest.mark.parametrize("name", TASKS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**40))
def test_sequences_are_of_the_length_and_vocabulary_that_the_task_says(name: str, seed: int) -> None:
    task, tokens = TASKS[name], written(name, seed)
    assert tokens.shape == (COUNT, task.length)
    assert 0 <= tokens.min() <= tokens.max() < task.vocab_size
    assert 0 < min(task.answers) <= max(task.answers) < task.length


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40))
def test_recall_asks_for_the_value_that_a_key_had(seed: int) -> None:
    for row in written("recall", seed).tolist():
        told = dict(zip(row[: 2 * PAIRS : 2], row[1 : 2 * PAIRS : 2], strict=True))
        assert len(told) == PAIRS
        for place in TASKS["recall"].answers:
            assert row[place] == told[row[place - 1]]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40))
def test_induction_asks_for_what_came_next_the_last_time(seed: int) -> None:
    for row in written("induction", seed).tolist():
        for place in TASKS["induction"].answers:
            before = row[: place - 1]
            assert before.count(row[place - 1]) == 1
            assert row[place] == row[before.index(row[place - 1]) + 1]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40))
def test_hops_asks_for_two_steps_along_the_chain(seed: int) -> None:
    for row in written("hops", seed).tolist():
        following = dict(zip(row[: 2 * CHAIN : 2], row[1 : 2 * CHAIN : 2], strict=True))
        assert len(following) == CHAIN
        for place in TASKS["hops"].answers:
            assert row[place - 2] == SYMBOLS
            assert row[place] == following[following[row[place - 1]]]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_memory_asks_for_facts_that_are_always_the_same(seed: int, other: int) -> None:
    facts: dict[tuple[int, int], tuple[int, int]] = {}
    for tokens in (written("memory", seed), written("memory", other)):
        for a, b, c, d in tokens.reshape(-1, 4).tolist():
            assert facts.setdefault((a, b), (c, d)) == (c, d)


@pytest.mark.parametrize("name", TASKS)
def test_only_the_answers_are_targets_and_a_batch_is_a_function_of_seed_and_step(name: str) -> None:
    task = TASKS[name]
    exercises = Exercises.of(task, 6, seed=3)
    inputs, targets, _ = exercises.batch(7)
    again = Exercises.of(task, 6, seed=3).batch(7)
    assert np.array_equal(inputs, again.inputs)
    assert not np.array_equal(inputs, exercises.batch(8).inputs)
    scored = np.argwhere(targets[0] != IGNORED).ravel() + 1
    assert tuple(scored) == task.answers
    for place in task.answers:
        if place < task.length - 1:
            assert np.array_equal(targets[:, place - 1], inputs[:, place])
