"""How a run's learning rate was chosen: as given, or as the best of a grid of runs, which are named and counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.runfolder import RunFolder, find_runs

# In what else the runs of a grid may differ from the run that takes their best rate.
MAY_DIFFER = {"max_lr", "min_lr", "seed", "max_steps", "warmup_steps", "final_split"}


@dataclass(frozen=True)
class Trial:
    """A run of a grid. The loss of one that diverged is infinite: it has shown that its rate will not do."""

    rate: float
    loss: float
    steps: int
    run_id: str


@dataclass(frozen=True)
class Choice:
    """The rate of the lowest loss, and what it was chosen among."""

    trials: tuple[Trial, ...]

    @property
    def losses(self) -> dict[float, float]:
        """The mean loss at each rate, in the order of the rates."""
        by_rate: dict[float, list[float]] = {}
        for trial in sorted(self.trials, key=lambda trial: trial.rate):
            by_rate.setdefault(trial.rate, []).append(trial.loss)
        return {rate: math.fsum(losses) / len(losses) for rate, losses in by_rate.items()}

    @property
    def best(self) -> float:
        losses = self.losses
        best = min(losses, key=lambda rate: losses[rate])
        if math.isinf(losses[best]):
            raise UserError(f"every rate of the grid diverged: {', '.join(f'{rate:g}' for rate in losses)}")
        return best

    def record(self) -> dict[str, Any]:
        """What manifest.json says of it."""
        losses, steps = self.losses, {trial.steps for trial in self.trials}
        length = f"after {min(steps):,} steps each" if len(steps) == 1 else "after unequal numbers of steps"
        return {
            "value": self.best,
            "how": f"the best of {len(losses)} rates by validation loss {length}",
            "grid": list(losses),
            "losses": [None if math.isinf(loss) else loss for loss in losses.values()],
            "at_edge": self.best in (min(losses), max(losses)),
            "budget_steps": sum(trial.steps for trial in self.trials),
            "run_ids": [trial.run_id for trial in self.trials],
        }


def record(config: RunConfig, data_hashes: Mapping[str, str]) -> dict[str, Any]:
    """What the manifest of a run says of its learning rate."""
    if config.tuned_from is None:
        return {"value": config.max_lr, "how": "taken as given, not searched"} | {
            "grid": [],
            "losses": [],
            "at_edge": False,
            "budget_steps": 0,
            "run_ids": [],
        }
    where = f"--tuned_from {config.tuned_from}"
    folders = find_runs([Path(config.tuned_from)])
    for folder in folders:
        _check_alike(config, data_hashes, folder, where)
    chosen = choice(folders)
    if not math.isclose(chosen.best, config.max_lr, rel_tol=1e-9):
        raise UserError(f"{where}: the best rate there is {chosen.best:g}, not --max_lr {config.max_lr:g}")
    return chosen.record()


def choice(folders: Sequence[RunFolder]) -> Choice:
    """What the runs of a grid say; each must have come to an end."""
    return Choice(tuple(_trial(folder) for folder in folders))


def _trial(folder: RunFolder) -> Trial:
    config, manifest = folder.identified()
    status, final = folder.status(), folder.final_eval()
    if status["state"] == "finished" and final is not None:
        loss = float(final["loss"])
    elif status.get("diverged"):
        loss = math.inf
    else:
        raise UserError(f"{folder.path} is a trial of a learning rate, but not finished ({status['state']})")
    return Trial(config.max_lr, loss, config.max_steps, manifest["run_id"])


def _check_alike(config: RunConfig, data_hashes: Mapping[str, str], folder: RunFolder, where: str) -> None:
    theirs, manifest = folder.identified()
    mine, other = config.identity(), theirs.identity()
    mine["model_type"], other["model_type"] = str(config.variant), str(theirs.variant)
    differing = [name for name in mine if name not in MAY_DIFFER and mine[name] != other[name]]
    if not config.decays_like(theirs):
        differing.append("min_lr")
    if manifest["data"]["sha256"] != dict(data_hashes):
        differing.append("the data")
    if differing:
        raise UserError(f"{where}: {folder.path} is of another kind; it differs in {', '.join(differing)}")
