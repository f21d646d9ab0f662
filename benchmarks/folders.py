"""Run folders as long training would leave them, made up: for measuring what reads them."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oelm.config import RunConfig, run_id
from oelm.runfolder import FORMAT, write_json, write_whole

HASHES = {split: (split * 32).encode().hex()[:64] for split in ("train", "val", "test")}
LOG_INTERVAL, VAL_INTERVAL = 10, 500
LAYERS, STEP_TIME, SCORED = 6, 0.0032, 262_144
Lines = Iterator[dict[str, Any]]


def make_runs(root: Path, variants: Sequence[str], seeds: int, metric_lines: int) -> list[Path]:
    """Finished runs of some variants and seeds, each with so many lines of metrics, and validations to match."""
    arms = [(name, seed) for name in variants for seed in range(seeds)]
    return [_make_run(root / name / f"seed-{seed}", name, seed, metric_lines) for name, seed in arms]


def _make_run(folder: Path, name: str, seed: int, metric_lines: int) -> Path:
    steps = LOG_INTERVAL * metric_lines
    config = RunConfig(
        preset="medium-512",
        model_type=name,
        seed=seed,
        max_steps=steps,
        out_dir=folder,
        log_interval=LOG_INTERVAL,
        val_interval=VAL_INTERVAL,
    ).resolved(50257)
    noise = random.Random(f"{name} {seed}")
    folder.mkdir(parents=True)
    write_whole(folder / "config.yaml", config.to_yaml())
    write_json(folder / "manifest.json", _manifest(config))
    _write_lines(folder / "metrics.jsonl", _metrics(config, noise))
    _write_lines(folder / "evals.jsonl", _evals(config, noise))
    write_json(folder / "timing_stats.json", _timing(config))
    write_json(folder / "status.json", _status(config))
    write_whole(folder / "training.log", "finished: val loss 3.0000\n")
    (folder / "samples").mkdir()
    write_whole(folder / "samples" / f"step-{steps}.txt", "One day, there was a run that nobody had trained. " * 18)
    return folder


def _write_lines(path: Path, records: Lines) -> None:
    with path.open("w") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in records)


def _loss(config: RunConfig, step: int, noise: random.Random) -> float:
    """A curve like those of real runs, a little apart for each variant."""
    apart = 0.02 * random.Random(str(config.variant)).random()
    learnt = 7.9 * math.exp(-step / (0.01 * config.max_steps)) + 0.5 * math.exp(-step / (0.3 * config.max_steps))
    return 2.9 + apart + learnt + noise.gauss(0, 0.004)


def _metrics(config: RunConfig, noise: random.Random) -> Lines:
    for step in range(LOG_INTERVAL, config.max_steps + 1, LOG_INTERVAL):
        yield {
            "step": step,
            "loss": _loss(config, step, noise),
            "grad_norm": abs(noise.gauss(0.4, 0.05)),
            "lr": config.max_lr,
            "tokens": step * config.tokens_per_step,
            "step_time": STEP_TIME,
            "tokens_per_second": config.tokens_per_step / STEP_TIME,
            "elapsed": step * STEP_TIME,
        }


def _evals(config: RunConfig, noise: random.Random) -> Lines:
    for step in [*range(VAL_INTERVAL, config.max_steps + 1, VAL_INTERVAL), config.max_steps]:
        yield _score(config, step, noise, final=False)
    yield _score(config, config.max_steps, noise, final=True)


def _score(config: RunConfig, step: int, noise: random.Random, final: bool) -> dict[str, Any]:
    loss = _loss(config, step, noise)
    return {
        **{"step": step, "split": "val", "final": final, "loss": loss, "ppl": math.exp(loss), "best_loss": loss},
        **{"tokens_scored": 5 * SCORED if final else SCORED, "tokens_seen": step * config.tokens_per_step},
        "elapsed": step * STEP_TIME * noise.uniform(1.04, 1.06),
        **{name: [noise.random() for _ in range(LAYERS)] for name in ("attention_entropy", "q_drift", "k_drift")},
    }


def _manifest(config: RunConfig) -> dict[str, Any]:
    frozen = 0 if config.model_type == "baseline" else 2 * LAYERS * config.d_model**2
    total = 44_896_768
    session = {
        **{"started": "2026-01-01T00:00:00+0000", "first_step": 0, "command": ["oelm", "train"], "engine": "graph"},
        **{"precision": "bfloat16", "deterministic": False, "processes": 1, "device": "a device", "cpu_threads": 8},
        **{"versions": {"oelm": "0", "torch": "0"}, "git": {"commit": "0" * 40, "changed": False}},
    }
    return {
        **{"format": FORMAT, "run_id": run_id(config, HASHES), "model_type": config.model_type},
        **{"variant": str(config.variant), "recipe": config.recipe, "seed": config.seed},
        "parameters": {"total": total, "trainable": total - frozen, "frozen": frozen},
        "data": {"dataset": config.dataset, "tokenizer": "gpt2", "tokens": {"train": 10**9}, "sha256": HASHES},
        "learning_rate": {
            **{"value": config.max_lr, "how": "taken as given, not searched", "grid": [], "losses": []},
            **{"at_edge": False, "budget_steps": 0, "run_ids": []},
        },
        "sessions": [session],
    }


def _timing(config: RunConfig) -> dict[str, Any]:
    training = config.max_steps * STEP_TIME
    parts = {"startup": 4.0, "compiling": 60.0, "training": training, "validation": 0.04 * training, "saving": 9.0}
    return {
        **{"model_type": config.model_type, "median_step_time": STEP_TIME, "total_wall_time": sum(parts.values())},
        **{"seconds_by_part": parts, "peak_memory_bytes": 5 * 2**30},
    }


def _status(config: RunConfig) -> dict[str, Any]:
    return {
        **{"state": "finished", "step": config.max_steps, "max_steps": config.max_steps, "message": ""},
        **{"device": "cpu", "pid": os.getpid(), "host": socket.gethostname(), "heartbeat": time.time()},
    }
