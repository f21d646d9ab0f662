"""`oelm probe`: how well small models of each variant learn each task, every one at its best learning rate."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch

from oelm import variants
from oelm.analysis.stats import Estimate, estimate
from oelm.bench.record import machine
from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.model.gpt import GPT
from oelm.probes.options import Probe
from oelm.probes.tasks import IGNORED, TASKS, Exercises
from oelm.runfolder import read_json, write_json
from oelm.training.schedule import changes, frozen_matrices
from oelm.training.step import TorchEngine
from oelm.training.world import World, choose_device

CHOOSING, JUDGING = 10_000, 20_000  # added to a seed: exercises that choose a rate, and others that give the score
EXERCISES = 512
ENTRY = {"variant": str, "task": str, "rate": float, "seed": int, "chosen_by": float, "score": float}


def probe(options: Probe, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs what is not in the result file yet, and returns what is in it then."""
    content = _begun(options)
    done = {(entry["variant"], entry["task"], entry["rate"], entry["seed"]) for entry in content["entries"]}
    todo = [wanted for wanted in _wanted(options) if wanted not in done]
    for number, (variant, task, rate, seed) in enumerate(todo, start=1):
        chosen_by, score = train(options.config(variant, task, rate, seed), task)
        entry = {"variant": variant, "task": task, "rate": rate, "seed": seed, "chosen_by": chosen_by, "score": score}
        content["entries"].append(entry)
        write_json(options.path, content)
        say(
            f"{number}/{len(todo)}  {task}, {variants.title(variant)}, learning rate {rate:g}, seed {seed}: {score:.1%}"
        )
    return content


def _wanted(options: Probe) -> Iterator[tuple[str, str, float, int]]:
    for task in options.tasks:
        for name in options.names:
            for rate in options.learning_rates:
                for seed in range(options.seeds):
                    yield name, task, rate, seed


def _begun(options: Probe) -> dict[str, Any]:
    """What is in the result file, if it is of the same kind of models."""
    options.path.parent.mkdir(parents=True, exist_ok=True)
    if not options.path.exists():
        return {"machine": machine(), "models": options.shape(), "entries": []}
    content: dict[str, Any] = read_json(
        options.path, {"models": dict, "entries": [ENTRY]}, "move it away, or choose another --out"
    )
    if content["models"] != options.shape():
        raise UserError(f"{options.path} is about other models ({content['models']}); choose another --out")
    return content


def train(config: RunConfig, task: str) -> tuple[float, float]:
    """Trains a model on a task; its accuracy on exercises that choose between rates, and on others, that judge."""
    device = choose_device(config.device)
    exercises = Exercises.of(TASKS[task], config.batch_size, config.seed)
    model = GPT(config, config.seed).to(device)
    engine = TorchEngine(model, config, World(0, 1, device), exercises, compiled=False)
    due = changes(config)
    for step in range(config.max_steps):
        if step in due:
            model.set_frozen(frozen_matrices(config, step))
            engine.rebuild()
        engine.step(step)
    return _accuracy(model, task, config.seed + CHOOSING), _accuracy(model, task, config.seed + JUDGING)


@torch.no_grad()
def _accuracy(model: GPT, task: str, seed: int) -> float:
    """The share of the answers that a model finds likeliest."""
    device = model.tokens.weight.device
    inputs, targets, _ = map(torch.from_numpy, Exercises.of(TASKS[task], EXERCISES, seed).batch(0))
    right = model(inputs.to(device)).argmax(-1).cpu() == targets
    return float(right[targets != IGNORED].float().mean())


def scores(content: dict[str, Any], options: Probe) -> dict[tuple[str, str], Estimate]:
    """By variant and task: the accuracy at the rate that other exercises have chosen, over the seeds.

    Of what was asked for alone: a file may have more rates and seeds of one variant than of another.
    """
    found, wanted = {}, set(_wanted(options))
    for name in options.names:
        for task in options.tasks:
            by_rate: dict[float, list[dict[str, Any]]] = {}
            for entry in content["entries"]:
                key = (entry["variant"], entry["task"], entry["rate"], entry["seed"])
                if key in wanted and key[:2] == (name, task):
                    by_rate.setdefault(entry["rate"], []).append(entry)
            best = max(by_rate.values(), key=lambda entries: statistics.fmean(e["chosen_by"] for e in entries))
            found[name, task] = estimate([entry["score"] for entry in best])
    return found


def table(found: dict[tuple[str, str], Estimate]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Variants as rows, tasks as columns; what a blind guess would give in the last row."""
    names, tasks = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 1))
    rows = [(variants.title(name), *(_cell(found[name, task]) for task in tasks)) for name in names]
    return ("variant", *tasks), [*rows, ("a blind guess", *(f"{1 / TASKS[task].choices:.1%}" for task in tasks))]


def _cell(score: Estimate) -> str:
    return f"{score.mean:.1%}" if score.low is None else f"{score.mean:.1%} ± {100 * (score.mean - score.low):.1f}"
