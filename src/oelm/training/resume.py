"""Where a run goes on from: its newest checkpoint that can be used, or the one that the user has named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.model.gpt import GPT
from oelm.runfolder import RunFolder
from oelm.training import audit, checkpoint
from oelm.training.schedule import frozen_matrices


def choose_checkpoint(
    config: RunConfig, folder: RunFolder, run_id: str, model: GPT, say: Callable[[str], None]
) -> Path | None:
    """The checkpoint to go on from, or None to begin; where the user has named one, later ones are dropped."""

    def expected(step: int) -> checkpoint.Expected:
        names = {name for name, _ in model.named_parameters()} - frozen_matrices(config, max(step - 1, 0))
        return checkpoint.Expected(run_id, names, audit.frozen_hashes(folder, step))

    if config.goes_back:
        path = Path(config.resume).resolve()
        there = checkpoint.by_age(folder.checkpoints.resolve())
        if path not in there:
            names = ", ".join(each.name for each in there) or "none"
            raise UserError(f"--resume {config.resume} is not a checkpoint of {folder.path}; it has: {names}")
        try:
            checkpoint.check(path, model, expected(checkpoint.step_of(path)))
        except checkpoint.DamagedError as damage:
            raise UserError(f"--resume {config.resume} cannot be used: {damage}") from None
        checkpoint.go_back(path)
    return checkpoint.newest(folder.checkpoints, say, model, expected)
