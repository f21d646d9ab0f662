"""Saving meanwhile: in order, of the tensors as they were, and no error lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from oelm.training.background import Background

Tensors = dict[str, dict[str, Tensor]]


@pytest.fixture
def background() -> Iterator[Background]:
    background = Background(torch.device("cpu"))
    yield background
    background.close()


def fail(_: Tensors) -> None:
    raise OSError("disk full")


def test_what_is_written_is_what_there_was_when_it_was_handed_over(background: Background) -> None:
    weight, gate, written = torch.zeros(3), threading.Event(), []

    def job(tensors: Tensors) -> None:
        gate.wait(10)
        written.append(tensors["model"]["weight"])

    background.write({"model": {"weight": weight}}, job)
    weight += 1  # the next step
    gate.set()
    background.wait()
    assert written[0].tolist() == [0, 0, 0]


def test_jobs_are_done_in_their_order(background: Background) -> None:
    done: list[int] = []
    for i in range(20):
        background.write({}, lambda _, i=i: done.append(i))  # type: ignore[misc]
    background.wait()
    assert done == list(range(20))


def test_an_error_is_raised_by_whoever_looks_next_and_only_once(background: Background) -> None:
    background.write({}, fail)
    with pytest.raises(OSError, match="disk full"):
        background.wait()
    background.wait()
    background.check()


def test_checking_does_not_wait(background: Background) -> None:
    gate = threading.Event()
    background.write({}, lambda _: gate.wait(10))
    background.check()
    gate.set()
    background.wait()


def test_after_a_failed_job_the_next_is_done_before_the_failure_is_raised(background: Background) -> None:
    background.write({}, fail)
    done: list[int] = []
    with pytest.raises(OSError, match="disk full"):
        background.write({}, lambda _: done.append(1))
    assert done == [1]
    background.wait()


def test_two_failures_are_an_error_at_once(background: Background) -> None:
    background.write({}, fail)
    with pytest.raises(OSError, match="disk full"):
        background.write({}, fail)
