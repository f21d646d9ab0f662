"""Runs side by side: quality paired by seed, cost, and a word on everything that would make it unfair."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm import variants
from oelm.analysis.stats import CRITERION, Estimate, estimate, verdict
from oelm.config import RunConfig
from oelm.errors import UserError, is_number
from oelm.runfolder import RunFolder
from oelm.training.observe import perplexity, shown

# What the time of a step depends on besides the model: a run's sessions say it, its config the last one.
COST = ("engine", "device", "precision", "cpu_threads", "processes", "deterministic", "accumulation")


@dataclass(frozen=True)
class Result:
    """One finished run, as read from its folder."""

    folder: RunFolder
    config: RunConfig
    manifest: dict[str, Any]
    final: dict[str, Any]
    timing: dict[str, Any]

    @property
    def loss(self) -> float:
        return float(self.final["loss"])


@dataclass(frozen=True)
class Row:
    """One variant: its runs over the seeds."""

    model_type: str
    seeds: tuple[int, ...]
    parameters: dict[str, int]
    loss: Estimate
    gap: Estimate | None  # in log-perplexity, paired by seed; None for the baseline itself
    verdict: str
    step_time: float

    @property
    def ppl(self) -> float:
        return perplexity(self.loss.mean)


@dataclass(frozen=True)
class Comparison:
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]
    criterion: float

    @property
    def headings(self) -> tuple[str, ...]:
        met = f"PPL ≤ {self.criterion:g} ×"
        return ("variant", "trainable", "frozen", "total", "seeds", "val loss", "PPL", "gap", met, "ms/step")

    def cells(self) -> list[tuple[str, ...]]:
        """The table's rows as text, a cell per heading."""
        return [
            (
                variants.title(row.model_type),
                f"{row.parameters['trainable']:,}",
                f"{row.parameters['frozen']:,}",
                f"{row.parameters['total']:,}",
                _listed(row.seeds),
                _with_interval(row.loss),
                shown(row.ppl, 3),
                "–" if row.gap is None else _percent(row.gap),
                row.verdict,
                f"{1000 * row.step_time:.2f}",
            )
            for row in self.rows
        ]

    def __str__(self) -> str:
        return "\n".join([aligned(self.headings, self.cells()), *(f"note: {text}" for text in self.warnings)])


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under headings as plain text."""
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def compare(folders: Sequence[RunFolder], criterion: float = CRITERION) -> Comparison:
    """Compares finished runs with the baseline among them; refuses runs that were not given the same task."""
    if not is_number(criterion) or not 0 < criterion < math.inf:
        raise UserError(f"--criterion {criterion!r} must be a number above 0, such as {CRITERION}")
    criterion, results = float(criterion), [read_result(folder) for folder in folders]
    _refuse_other_tasks(results)
    arms: dict[str, dict[int, Result]] = {}
    for result in results:
        name, seed = variants.name_of(result.config.variant), result.config.seed
        arm = arms.setdefault(name, {})
        if seed in arm:
            twins = f"{arm[seed].folder.path} and {result.folder.path}"
            raise UserError(f"{twins} are both {name} with seed {seed}; leave one out")
        arm[seed] = result
    baseline = arms.get("baseline", {})
    rows = [_row(name, arm, baseline, criterion) for name, arm in arms.items()]
    return Comparison(tuple(rows), tuple(_warnings(results, arms)), criterion)


def read_result(folder: RunFolder) -> Result:
    (config, manifest), final, state = folder.identified(), folder.final_eval(), folder.status()["state"]
    if state != "finished":
        raise UserError(f"{folder.path} is not finished ({state}); finish it or leave it out")
    if final is None:
        raise UserError(f"{folder.evals} is damaged: the final score is missing; leave the run out")
    return Result(folder, config, manifest, final, folder.timing())


def _row(name: str, arm: dict[int, Result], baseline: dict[int, Result], criterion: float) -> Row:
    paired = sorted(arm.keys() & baseline.keys())
    gap = estimate([arm[seed].loss - baseline[seed].loss for seed in paired]) if paired else None
    is_baseline = arm is baseline
    first = next(iter(arm.values()))
    times = sorted(float(result.timing["median_step_time"]) for result in arm.values())
    return Row(
        model_type=name,
        seeds=tuple(sorted(arm)),
        parameters=first.manifest["parameters"],
        loss=estimate([result.loss for result in arm.values()]),
        gap=None if is_baseline else gap,
        verdict="–" if is_baseline or gap is None else verdict(gap, criterion),
        step_time=times[len(times) // 2],
    )


def _refuse_other_tasks(results: list[Result]) -> None:
    """Runs are comparable only if they learnt from the same bytes, saw as many tokens and were scored on the same."""

    def task(result: Result) -> dict[str, Any]:
        hashes = result.manifest["data"]["sha256"]
        return {
            "training data": hashes["train"][:12],
            "validation data": hashes["val"][:12],
            "tokens seen": result.final["tokens_seen"],
            "validation tokens scored": result.final["tokens_scored"],
            "sequence length": result.config.seq_len,
        }

    first = results[0]
    for other in results[1:]:
        for what, value in task(first).items():
            if task(other)[what] != value:
                raise UserError(
                    f"cannot compare {first.folder.path} with {other.folder.path}: "
                    f"{what} differ ({value} against {task(other)[what]})"
                )


def _warnings(results: list[Result], arms: dict[str, dict[int, Result]]) -> list[str]:
    warnings = []
    if "baseline" not in arms:
        warnings.append("no baseline among the runs: no gap can be given")
    rates = {name: sorted({result.config.max_lr for result in arm.values()}) for name, arm in arms.items()}
    if len({tuple(rate) for rate in rates.values()}) > 1:
        listed = ", ".join(f"{name} {'/'.join(f'{r:g}' for r in rate)}" for name, rate in rates.items())
        warnings.append(f"the variants ran at different learning rates: {listed}")
    unsearched = [
        name for name, arm in arms.items() if any(not r.manifest["learning_rate"]["grid"] for r in arm.values())
    ]
    if unsearched:
        warnings.append(f"learning rate not tuned for: {', '.join(unsearched)}")
    budgets = {r.manifest["learning_rate"]["budget_steps"] for r in results}
    if len(budgets) > 1:
        warnings.append(f"the variants had unequal tuning budgets: {', '.join(map(str, sorted(budgets)))} steps")
    differing = _differing_fields(results)
    if differing:
        warnings.append(f"the runs differ in more than the variant: {', '.join(differing)}")
    if all(len(arm) == 1 for arm in arms.values()):
        warnings.append("one seed per variant: no interval can be given, and small gaps mean nothing")
    warnings += [_unpaired(name, arm, arms["baseline"]) for name, arm in arms.items() if "baseline" in arms]
    warnings.append(_unequal_cost(arms))
    return list(filter(None, warnings))


def _unpaired(name: str, arm: dict[int, Result], baseline: dict[int, Result]) -> str:
    """The seeds that a variant and the baseline do not share: their losses are means over other runs than the gap."""
    paired = arm.keys() & baseline.keys()
    if not paired:
        return f"{name} shares no seed with the baseline: no gap can be given"
    without = {name: arm.keys() - paired, "baseline": baseline.keys() - paired}
    listed = "; ".join(f"{_listed(seeds)} ({who})" for who, seeds in without.items() if seeds)
    return f"the gap of {name} is over seeds {_listed(paired)}; seeds without a partner: {listed}" if listed else ""


def _unequal_cost(arms: dict[str, dict[int, Result]]) -> str:
    """What makes step times differ for another reason than the variant."""
    values = {name: {what: _values(what, arm) for what in COST} for name, arm in arms.items()}
    differing = [what for what in COST if len(set[str]().union(*(arm[what] for arm in values.values()))) > 1]
    if not differing:
        return ""

    def described(name: str) -> str:
        return ", ".join(f"{what} {'/'.join(sorted(values[name][what]))}" for what in differing)

    return "step times are not comparable: " + "; ".join(f"{name} ran with {described(name)}" for name in arms)


def _values(what: str, arm: dict[int, Result]) -> set[str]:
    """The values that one of COST had in the sessions of a variant's runs."""
    if what == "accumulation":
        return {str(result.config.accumulation) for result in arm.values()}
    return {str(session[what]) for result in arm.values() for session in result.manifest["sessions"]}


def _differing_fields(results: list[Result]) -> list[str]:
    meant = {"model_type", "seed", "max_lr", "min_lr"}
    identities = [result.config.identity() for result in results]
    return [name for name in identities[0] if name not in meant and len({repr(i[name]) for i in identities}) > 1]


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))


def _with_interval(value: Estimate) -> str:
    if value.low is None:
        return f"{value.mean:.4f}"
    return f"{value.mean:.4f} ± {value.mean - value.low:.4f}"


def _percent(gap: Estimate) -> str:
    def as_percent(log_ratio: float) -> str:
        percent = 100 * math.expm1(min(log_ratio, 700.0))  # where a run has diverged, there may be no number for it
        return f"{percent:+.1f} %" if percent < 1e6 else f"{percent:+.4g} %"

    if gap.low is None or gap.high is None:
        return as_percent(gap.mean)
    return f"{as_percent(gap.mean)} ({as_percent(gap.low)} … {as_percent(gap.high)})"


def find_runs(paths: Sequence[str | Path]) -> list[RunFolder]:
    """The run folders that paths name: each path itself, or all those below it."""
    if not paths:
        raise UserError("name at least one run folder, or a folder with run folders below it")
    found: list[RunFolder] = []
    for path in map(Path, paths):
        if (path / "manifest.json").exists():
            found.append(RunFolder(path))
            continue
        below = sorted(manifest.parent for manifest in path.rglob("manifest.json"))
        if not below:
            raise UserError(f"{path} is no run folder, and there is none below it")
        found += [RunFolder(folder) for folder in below]
    return found
