"""The proof that frozen is frozen: a hash per matrix at each freeze, thaw and at the end, checked against checkpoints.

A matrix is frozen from the step of a freeze to that of a thaw, or to the end. Step N stands for the weights between the
Nth update and the one after it; a checkpoint of step N is made before anything is frozen or thawed there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.model.gpt import GPT
from oelm.model.querykey import birth
from oelm.runfolder import RunFolder, read_json, write_json
from oelm.training.checkpoint import DamagedError, step_of_weights, tensor_hash
from oelm.training.schedule import frozen_matrices

FILE = "freeze_audit.json"
SHAPE = {"events": [{"event": str, "step": int, "sha256": {str: str}}]}


@dataclass(frozen=True)
class Finding:
    """Whether one matrix is the same at one place as when it was frozen."""

    matrix: str
    place: str
    intact: bool


def begin(folder: RunFolder, model: GPT) -> None:
    """Records every matrix that is frozen from birth."""
    _write(folder, [_event("freeze", 0, model, model.frozen())])


def change(folder: RunFolder, model: GPT, step: int, names: Iterable[str]) -> None:
    """Records matrices that were frozen or thawed before update number `step`."""
    frozen = model.frozen().keys()
    for kind, some in (("freeze", set(names) & frozen), ("thaw", set(names) - frozen)):
        if some:
            _write(folder, [*_events(folder), _event(kind, step, model, sorted(some))])


def end(folder: RunFolder, model: GPT, step: int) -> None:
    """Records the frozen matrices as they are at the end."""
    _write(folder, [*_events(folder), _event("end", step, model, model.frozen())])


def rewind(folder: RunFolder, step: int) -> None:
    """Forgets what was recorded after a checkpoint of this step, for a run that goes on from there."""
    _write(folder, _before(_events(folder), step))


def frozen_hashes(folder: RunFolder, step: int) -> dict[str, str]:
    """The hash that each matrix must have that is frozen in a checkpoint of this step."""
    return _held(_before(_events(folder), step))


def frozen_now(folder: RunFolder) -> int:
    """How many matrices are frozen by the last word of the record."""
    return len(_held(_events(folder)))


def findings(folder: RunFolder) -> list[Finding]:
    """Every frozen matrix at its thaw, at the end of the run and in every checkpoint that there is.

    What is frozen from birth follows from the seed: in a checkpoint it must be what is drawn here, not only what the
    record says of it.
    """
    found: list[Finding] = []
    events = _events(folder)
    config, manifest = folder.identified()
    for event in events:
        step, place = event["step"], f"step {event['step']} ({event['event']})"
        if event["event"] == "thaw":
            found += _compare(folder, _frozen(config, step) - _frozen(config, step + 1), place, step, event["sha256"])
        elif event["event"] == "end":
            found += _compare(folder, _frozen(config, step), place, step, event["sha256"])
    if folder.status()["state"] == "finished" and not any(event["event"] == "end" for event in events):
        found += _compare(folder, _frozen(config, config.max_steps), "the end, which is not on record", 0, {})
    weights = [*folder.checkpoints.glob("step-*/model.safetensors"), *folder.checkpoints.glob("best.safetensors")]
    births = {name: birth(config, config.seed, name) for name in _frozen(config, 0)}
    for path in sorted(weights):
        step, hashes = _read(path, manifest["run_id"], births)
        found += _compare(folder, _frozen(config, step), str(path.relative_to(folder.path)), step, hashes)
    return found


def _compare(folder: RunFolder, names: set[str], place: str, step: int, hashes: dict[str, str]) -> list[Finding]:
    expected = frozen_hashes(folder, step)
    return [Finding(name, place, name in expected and hashes.get(name) == expected[name]) for name in sorted(names)]


def _frozen(config: RunConfig, step: int) -> set[str]:
    """The matrices that the run's variant freezes in the last update before this step, whatever the record says."""
    return frozen_matrices(config, max(step - 1, 0))


def _read(path: Path, run_id: str, births: dict[str, Tensor]) -> tuple[int, dict[str, str]]:
    """The step of a file of weights, and the hash of each that is of Q or K; of `births`, only if it is as born."""
    try:
        step = step_of_weights(path, run_id)
        return step, {
            name: tensor_hash(weight)
            for name, weight in load_file(path).items()
            if ".attention." in name and (name not in births or _same(weight, births[name]))
        }
    except DamagedError as damage:
        raise UserError(f"{path} proves nothing: {damage}; move it out of the run folder") from None
    except Exception as error:  # safetensors raises its own and OSErrors, numpy TypeErrors for types it does not know
        raise UserError(f"{path} cannot be read: {error}") from None


def _same(weight: Tensor, birth: Tensor) -> bool:
    """Whether two tensors are equal but for their last bits, in which QR differs from machine to machine."""
    return weight.shape == birth.shape and torch.allclose(weight, birth, rtol=0, atol=1e-5)


def _held(events: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The hashes of what is frozen after some events."""
    held: dict[str, str] = {}
    for event in events:
        if event["event"] == "freeze":
            held |= event["sha256"]
        elif event["event"] == "thaw":
            held = {name: digest for name, digest in held.items() if name not in event["sha256"]}
    return held


def _before(events: list[dict[str, Any]], step: int) -> list[dict[str, Any]]:
    """The events before a checkpoint of this step; what is frozen from birth always is."""
    return [event for i, event in enumerate(events) if i == 0 or event["step"] < step]


def _event(kind: str, step: int, model: GPT, names: Iterable[str]) -> dict[str, Any]:
    return {"event": kind, "step": step, "sha256": {name: tensor_hash(model.get_parameter(name)) for name in names}}


def _events(folder: RunFolder) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = read_json(folder.path / FILE, SHAPE)["events"]
    return events


def _write(folder: RunFolder, events: list[dict[str, Any]]) -> None:
    write_json(folder.path / FILE, {"events": events})
