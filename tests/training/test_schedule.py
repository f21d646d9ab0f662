"""The learning rate: up in a line, down in a cosine."""

import itertools

import pytest

from oelm import cli
from oelm.config import RunConfig
from oelm.training.schedule import learning_rate


def test_it_rises_to_the_maximum_and_falls_to_the_minimum() -> None:
    config = RunConfig(max_steps=100, warmup_steps=10, max_lr=1.0, min_lr=0.1)
    rates = [learning_rate(config, step) for step in range(101)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.55)
    assert rates[100] == pytest.approx(0.1)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[10:]))


def test_without_warm_up_it_starts_at_the_maximum() -> None:
    assert learning_rate(RunConfig(max_steps=10, warmup_steps=0, max_lr=0.5, min_lr=0.0), 0) == 0.5


def test_the_cosine_arrives_when_the_help_says(capsys: pytest.CaptureFixture[str]) -> None:
    config = RunConfig(max_steps=10, warmup_steps=2, max_lr=1.0, min_lr=0.5)
    assert learning_rate(config, 9) > 0.5
    assert learning_rate(config, 10) == 0.5
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Learning rate at which the cosine would arrive one step after the last." in text
