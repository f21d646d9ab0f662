"""What tests share: a prepared storybook, small configurations, the command line as a process, and what is missing."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from oelm.config import RunConfig
from oelm.data.prepare import prepare

# What a machine may lack, and how to tell. OELM_REQUIRE=cuda,compiler turns its absence into a failure.
PRESENT: dict[str, Callable[[], bool]] = {
    "cuda": torch.cuda.is_available,
    "compiler": lambda: shutil.which("g++") is not None,
    "chromium": lambda: all(map(shutil.which, ("chromium", "chromedriver"))),
    "pango": lambda: all(map(ctypes.util.find_library, ("pango-1.0", "pangoft2-1.0"))),
    "tmux": lambda: shutil.which("tmux") is not None,
    "tmpfs": lambda: _tmpfs_can_be_mounted(),
}


REQUIRED = set(filter(None, os.environ.get("OELM_REQUIRE", "").split(",")))


def _tmpfs_can_be_mounted() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(command, capture_output=True).returncode == 0


def needs(thing: str) -> None:
    """Leaves a test out, loudly, on a machine that lacks something."""
    if PRESENT[thing]():
        return
    if thing in REQUIRED:
        pytest.fail(f"OELM_REQUIRE asks for {thing}, and this machine has none")
    pytest.skip(f"not run: this machine has no {thing}")


def pytest_configure() -> None:
    """A shell that runs the tests in the background has them ignore SIGINT, and so would all that they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if unknown := REQUIRED - PRESENT.keys():
        raise pytest.UsageError(f"OELM_REQUIRE names {', '.join(unknown)}; there are {', '.join(PRESENT)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test begins first; begun last, it would leave the other worker without work for a minute."""
    items.sort(key=lambda item: item.name != "test_the_commands_work_as_they_stand")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was not run is said where nobody can overlook it."""
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"{reason.removeprefix('Skipped: ')} ({report.nodeid})", yellow=True, bold=True)


@pytest.fixture(scope="session")
def storybook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in corpus, prepared."""
    return prepare("storybook", data_dir=tmp_path_factory.mktemp("data"))


@pytest.fixture
def tiny(storybook: Path, tmp_path: Path) -> Callable[..., RunConfig]:
    """A configuration small enough that a step takes milliseconds."""

    def make(**changes: Any) -> RunConfig:
        fields = {
            "d_model": 32,
            "num_layers": 2,
            "num_heads": 2,
            "d_ff": 64,
            "seq_len": 32,
            "batch_size": 8,
            "max_steps": 20,
            "max_lr": 3e-3,
            "warmup_steps": 5,
            "val_tokens": 2048,
            "val_interval": 10,
            "save_interval": 10,
            "log_interval": 5,
            "device": "cpu",
            "data_path": str(storybook),
            "out_dir": str(tmp_path / "run"),
        }
        return RunConfig(**{**fields, **changes})

    return make


def flags_of(config: RunConfig) -> list[str]:
    """A configuration as the flags of `oelm train`."""
    flags: list[str] = []
    for name, value in vars(config).items():
        if isinstance(value, bool):
            flags.append(f"--{name}" if value else f"--no_{name}")
        elif name not in ("preset", "recipe"):
            flags += [f"--{name}", str(value)]
    return flags


def oelm(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "oelm", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
