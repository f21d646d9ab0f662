"""Results of measurements, kept with the hardware and versions that they were made on."""

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

PACKAGES = ("torch", "triton", "numpy", "tiktoken", "datasets", "transformers")


def machine() -> dict[str, Any]:
    """What this was measured on."""
    gpu = torch.cuda.is_available()
    return {
        "processor": device_name(torch.device("cpu")),
        "gpu": device_name(torch.device("cuda")) if gpu else None,
        "cuda": torch.version.cuda if gpu else None,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "versions": {"oelm": oelm.__version__, **{package: _version(package) for package in PACKAGES}},
        "git": git_state(),
        "date": time.strftime("%Y-%m-%d"),
    }


def write_result(path: Path, content: dict[str, Any]) -> Path:
    """Writes a result file; its folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **content}, indent=2) + "\n")
    return path


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
