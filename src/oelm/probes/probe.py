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
    """What is asked for; variants as specs, for what a name stands for may change."""
    for task in options.tasks:
        for name in options.names:
            for rate in options.learning_rates:
                for seed in range(options.seeds):
                    yield _spec(name), task, rate, seed


def _spec(name: str) -> str:
    return str(variants.parse(name))


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


def chosen(content: dict[str, Any], options: Probe) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """By variant and task: the entries at the rate that was best on the exercises that choose, one per seed.

    Of what was asked for alone: a file may have more rates and seeds of one variant than of another.
    """
    found = {(e["variant"], e["task"], e["rate"], e["seed"]): e for e in content["entries"]}
    if missing := [wanted for wanted in _wanted(options) if wanted not in found]:
        raise UserError(f"{options.path} lacks {len(missing)} of the probes, such as {missing[0]}; run it again")
    best = {}
    for name in options.names:
        for task in options.tasks:
            of_rates = [
                [found[_spec(name), task, rate, seed] for seed in range(options.seeds)]
                for rate in options.learning_rates
            ]
            best[name, task] = max(of_rates, key=_chosen_by)
    return best


def _chosen_by(entries: list[dict[str, Any]]) -> float:
    return statistics.fmean(entry["chosen_by"] for entry in entries)


def scores(content: dict[str, Any], options: Probe) -> dict[tuple[str, str], Estimate]:
    """By variant and task: the accuracy at the chosen rate on the exercises that judge, over the seeds."""
    best = chosen(content, options)
    return {key: estimate([entry["score"] for entry in entries]) for key, entries in best.items()}


def notes(content: dict[str, Any], options: Probe) -> list[str]:
    """What a reader has to know about the scores."""
    said = []
    ends = (min(options.learning_rates), max(options.learning_rates))
    at_edge = [
        f"{variants.title(name)} on {task}"
        for (name, task), entries in chosen(content, options).items()
        if entries[0]["rate"] in ends and _chosen_by(entries) < 1
    ]
    if len(options.learning_rates) == 1:
        said.append("learning rate not tuned")
    elif at_edge:
        said.append(f"best learning rate at the edge of its grid, so a better one may lie beyond: {', '.join(at_edge)}")
    shape = options.config(options.names[0], options.tasks[0], options.learning_rates[0], 0)
    there = {shape.spec_of(variants.parse(name)) for name in options.names}
    for name in options.names:
        variant = variants.parse(name)
        if (more := variants.extras(variant)) and shape.spec_of(fair := variants.fair_baseline(variant)) not in there:
            lacking = f"{variants.title(name)} has {', '.join(more)}, which no baseline here has"
            said.append(f"{lacking}; add {variants.name_of(fair)} to --variants")
    if options.seeds == 1:
        said.append("one seed each: no interval can be given, and small differences mean nothing")
    return said


def table(found: dict[tuple[str, str], Estimate]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Variants as rows, tasks as columns; what a blind guess would give in the last row."""
    names, tasks = (list(dict.fromkeys(key[i] for key in found)) for i in (0, 1))
    rows = [(variants.title(name), *(_cell(found[name, task]) for task in tasks)) for name in names]
    return ("variant", *tasks), [*rows, ("a blind guess", *(f"{1 / TASKS[task].choices:.1%}" for task in tasks))]


def _cell(score: Estimate) -> str:
    return f"{score.mean:.1%}" if score.low is None else f"{score.mean:.1%} ± {100 * (score.mean - score.low):.1f}"
