"""manifest.json: what a run was made of, so that another can be made like it, or told apart from it."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import oelm
from oelm.config import RunConfig, run_id
from oelm.data.batches import Corpus
from oelm.model.cost import ever_trained, trained_share
from oelm.model.gpt import GPT
from oelm.runfolder import FORMAT
from oelm.training import tuning
from oelm.training.step import Engine


def manifest(config: RunConfig, corpus: Corpus, model: GPT) -> dict[str, Any]:
    """What stays the same over all sessions of a run."""
    total = sum(p.numel() for p in model.parameters())
    frozen = sum(p.numel() for p in model.frozen().values())
    return {
        "format": FORMAT,
        "run_id": run_id(config, corpus.hashes),
        "model_type": config.model_type,
        "variant": str(config.variant),
        "recipe": config.recipe,
        "seed": config.seed,
        "parameters": {
            "total": total,
            "trainable": total - frozen,  # at first
            "frozen": frozen,
            "ever_trained": ever_trained(config),
        },
        "trained_share_of_qk": trained_share(config),
        "data": {
            "dataset": corpus.meta.name,
            "tokenizer": corpus.meta.tokenizer,
            "tokens": corpus.meta.tokens,
            "sha256": corpus.hashes,
        },
        "learning_rate": tuning.record(config, corpus.hashes),
        "sessions": [],
    }


def session(engine: Engine, command: list[str], first_step: int) -> dict[str, Any]:
    """What one start or resume of the run ran on."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "first_step": first_step,
        "command": command,
        "engine": engine.name,
        "precision": str(engine.precision).removeprefix("torch."),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "processes": engine.world.size,
        "device": device_name(engine.world.device),
        "cpu_threads": torch.get_num_threads(),
        "versions": {
            "oelm": oelm.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "numpy": np.__version__,
        },
        "git": git_state(),
    }


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's and the number of its cores."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name}, {os.cpu_count()} cores"


def device_id(device: torch.device) -> str:
    """What tells a GPU from all others, as NVML names it; or cpu."""
    if device.type == "cuda":
        return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    return device.type


def git_state() -> dict[str, Any] | None:
    """The commit of the code that runs, and whether it was changed since; None outside a checkout."""
    here = Path(oelm.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "changed": bool(git("status", "--porcelain", "--", str(here))),
        }
    except (OSError, subprocess.SubprocessError):
        return None
