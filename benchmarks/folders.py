"""Run folders as long runs would leave them, written without training: to measure what reads many of them."""

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
from oelm.wording import perplexity

HASHES = {split: split.encode().hex().ljust(64, "0") for split in ("train", "val", "test")}
LOG_INTERVAL, VAL_INTERVAL = 10, 500
SECONDS_PER_STEP = 0.02
TOTAL, PER_MATRIX, LAYERS = 271_000, 64 * 64, 2


def make_runs(root: Path, variants: Sequence[str], seeds: int, metric_lines: int) -> list[Path]:
    """A finished run per variant and seed: root/VARIANT/seed-N, with so many lines of metrics."""
    return [
        make_run(root / name / f"seed-{seed}", name, seed, metric_lines) for name in variants for seed in range(seeds)
    ]


def make_run(path: Path, model_type: str, seed: int, metric_lines: int) -> Path:
    steps = metric_lines * LOG_INTERVAL
    given: dict[str, Any] = {
        "log_interval": LOG_INTERVAL,
        "val_interval": VAL_INTERVAL,
        "max_steps": steps,
        "out_dir": str(path),
    }
    config = RunConfig.make(model_type=model_type, seed=seed, **given).resolved(512)
    curve = Curve(config)
    path.mkdir(parents=True)
    write_whole(path / "config.yaml", config.to_yaml())
    write_json(path / "manifest.json", manifest(config))
    write_whole(path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in curve.metrics()))
    write_whole(path / "evals.jsonl", "".join(json.dumps(line) + "\n" for line in curve.scores()))
    write_json(path / "timing_stats.json", timing(config, curve.final))
    write_json(path / "status.json", status(config))
    write_whole(path / "training.log", f"finished: val loss {curve.final:.4f}\n")
    return path


class Curve:
    """Losses that fall as in training: a power of the step, with noise, a little higher where Q and K rest."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self._chance = config, random.Random(f"{config.model_type} {config.seed}")
        frozen = [side for side in config.variant.sides.values() if not side.trained]
        self._floor = 2.0 + 0.01 * len(frozen) + self._chance.gauss(0, 0.004)
        self.final = self.at(config.max_steps)

    def at(self, step: int) -> float:
        return self._floor + 4.0 * math.pow(1 + step / 20, -0.4)

    def metrics(self) -> Iterator[dict[str, Any]]:
        for step in range(LOG_INTERVAL, self.config.max_steps + 1, LOG_INTERVAL):
            seconds = SECONDS_PER_STEP * (1 + 0.1 * self._chance.random())
            yield {
                "step": step,
                "loss": self.at(step) + 0.05 * self._chance.random(),
                "grad_norm": 0.3 + 0.1 * self._chance.random(),
                "lr": self.config.max_lr * (0.55 + 0.45 * math.cos(math.pi * step / self.config.max_steps)),
                "tokens": step * self.config.tokens_per_step,
                "step_time": seconds,
                "tokens_per_second": self.config.tokens_per_step / seconds,
                "elapsed": step * SECONDS_PER_STEP,
            }

    def scores(self) -> Iterator[dict[str, Any]]:
        for step in range(VAL_INTERVAL, self.config.max_steps + 1, VAL_INTERVAL):
            yield self.score(step, final=False)
        yield self.score(self.config.max_steps, final=True)

    def score(self, step: int, final: bool) -> dict[str, Any]:
        loss, moved = self.at(step), {side: when.trained for side, when in self.config.variant.sides.items()}
        return {
            "step": step,
            "split": "val",
            "final": final,
            "loss": loss,
            "ppl": perplexity(loss),
            "best_loss": loss,
            "tokens_scored": 1_000_000 if final else 262_144,
            "tokens_seen": step * self.config.tokens_per_step,
            "elapsed": step * SECONDS_PER_STEP,
            "attention_entropy": [2.5 + 0.1 * self._chance.random() for _ in range(LAYERS)],
            "q_drift": [float(moved["q"]) * step / self.config.max_steps] * LAYERS,
            "k_drift": [float(moved["k"]) * step / self.config.max_steps] * LAYERS,
        }


def manifest(config: RunConfig) -> dict[str, Any]:
    frozen = PER_MATRIX * LAYERS * sum(not side.trained for side in config.variant.sides.values())
    return {
        "format": FORMAT,
        "run_id": run_id(config, HASHES),
        "model_type": config.model_type,
        "variant": str(config.variant),
        "recipe": config.recipe,
        "seed": config.seed,
        "parameters": {"total": TOTAL, "trainable": TOTAL - frozen, "frozen": frozen},
        "data": {
            "dataset": config.dataset,
            "tokenizer": "small-bpe",
            "tokens": {"train": 50_000_000, "val": 1_000_000, "test": 1_000_000},
            "sha256": HASHES,
        },
        "learning_rate": {
            **{"value": config.max_lr, "how": "taken as given, not searched"},
            **{"grid": [], "losses": [], "at_edge": False, "budget_steps": 0, "run_ids": []},
        },
        "sessions": [session(config)],
    }


def session(config: RunConfig) -> dict[str, Any]:
    return {
        "started": "2026-01-01T00:00:00+0000",
        "first_step": 0,
        "command": ["oelm", "train", "--model_type", config.model_type, "--seed", str(config.seed)],
        "engine": "eager",
        "precision": "float32",
        "deterministic": False,
        "processes": 1,
        "device": "a processor, 2 cores",
        "cpu_threads": 1,
        "versions": {"oelm": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "cuda": None, "numpy": "2.4.6"},
        "git": None,
    }


def timing(config: RunConfig, loss: float) -> dict[str, Any]:
    wall = config.max_steps * SECONDS_PER_STEP
    step_times = dict.fromkeys(
        ("mean_step_time", "median_step_time", "min_step_time", "max_step_time"), SECONDS_PER_STEP
    )
    return {
        "model_type": config.model_type,
        "init_method": str(config.variant),
        "final_perplexity": perplexity(loss),
        "best_perplexity": perplexity(loss),
        "total_wall_time": wall,
        "total_formatted": f"{wall:.0f}s",
        "num_steps_measured": config.max_steps,
        **step_times,
        "std_step_time": 0.0,
        **{"total_validation_time": 1.0, "mean_validation_time": 0.01, "num_validations": 100},
        "seconds_by_part": {"startup": 1.0, "compiling": 0.0, "training": wall - 4, "validation": 1.0, "saving": 2.0},
        "peak_memory_bytes": None,
    }


def status(config: RunConfig) -> dict[str, Any]:
    return {
        "state": "finished",
        "step": config.max_steps,
        "max_steps": config.max_steps,
        "message": "",
        "device": "cpu",
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "heartbeat": time.time(),
    }
