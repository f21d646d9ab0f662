"""Where measurements are kept, with the hardware and versions that they were made on."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

import oelm
from oelm.training.manifest import device_name, git_state

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "numpy", "tiktoken", "datasets", "transformers")


def write_result(name: str, content: dict[str, Any]) -> Path:
    """Writes benchmarks/results/NAME.json."""
    machine = {
        "processor": device_name(torch.device("cpu")),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "versions": {"oelm": oelm.__version__, **{package: _version(package) for package in PACKAGES}},
        "git": git_state(),
        "date": time.strftime("%Y-%m-%d"),
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, **content}, indent=2) + "\n")
    return path


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
