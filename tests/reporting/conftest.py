"""Runs to report on: two variants, two seeds, trained once for all the tests of a report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oelm.config import RunConfig
from oelm.reporting.blocks import Block, Report
from oelm.reporting.content import content
from oelm.runfolder import RunFolder, find_runs
from oelm.training.loop import fit


@pytest.fixture(scope="session")
def outputs(storybook: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of finished runs, for tests that leave it as they found it."""
    folder = tmp_path_factory.mktemp("outputs")
    for name in ("baseline", "oelm_v2"):
        for seed in (0, 1):
            fields: dict[str, Any] = {"model_type": name, "seed": seed, "out_dir": folder / name / f"seed-{seed}"}
            fit(RunConfig(**SMALL, **fields, data_path=storybook))
    return folder


SMALL: dict[str, Any] = {
    **{"d_model": 16, "seq_len": 32, "batch_size": 4, "max_steps": 10, "max_lr": 3e-3, "warmup_steps": 2},
    **{"val_tokens": 512, "val_interval": 1, "save_interval": 10, "log_interval": 5, "device": "cpu"},
}


@pytest.fixture
def copied(outputs: Path, tmp_path: Path) -> Path:
    """The runs once more, to be damaged."""
    return Path(shutil.copytree(outputs, tmp_path / "outputs"))


@pytest.fixture(scope="session")
def runs(outputs: Path) -> list[RunFolder]:
    return find_runs([outputs])


@pytest.fixture(scope="session")
def said(runs: list[RunFolder]) -> Report:
    return content(runs)


def part(report: Report, title: str, section: int = 0) -> tuple[Block, ...]:
    """The blocks under a heading."""
    return next(part.blocks for part in report.sections[section].parts if part.title == title)


@pytest.fixture
def spoilt(copied: Path) -> Callable[[str, str], Path]:
    """The runs, one of which has a file with other content."""

    def spoil(file: str, content: str) -> Path:
        (copied / "oelm_v2" / "seed-1" / file).write_text(content)
        return copied

    return spoil
