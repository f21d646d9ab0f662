"""The proof that frozen is frozen: a hash per matrix at each freeze and at the end, and a check against checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from oelm.errors import UserError
from oelm.model.gpt import GPT
from oelm.runfolder import RunFolder, read_json, write_json
from oelm.training.checkpoint import tensor_hash

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
    _record(folder, "freeze", 0, {name: tensor_hash(weight) for name, weight in model.frozen().items()})


def end(folder: RunFolder, model: GPT, step: int) -> None:
    """Records the frozen matrices as they are at the end."""
    _record(folder, "end", step, {name: tensor_hash(weight) for name, weight in model.frozen().items()})


def hashes_at_freeze(folder: RunFolder) -> dict[str, str]:
    """The hash that each frozen matrix must have."""
    expected: dict[str, str] = {}
    for event in _events(folder):
        if event["event"] == "freeze":
            expected |= event["sha256"]
    return expected


def findings(folder: RunFolder) -> list[Finding]:
    """Every frozen matrix, at the end of the run and in every checkpoint that there is."""
    expected = hashes_at_freeze(folder)
    missing = _frozen_by_variant(folder) - expected.keys()
    found = [Finding(name, "the record of what was frozen", False) for name in sorted(missing)]
    for event in _events(folder):
        if event["event"] == "end":
            found += [
                Finding(name, f"step {event['step']} (end)", event["sha256"].get(name) == digest)
                for name, digest in expected.items()
            ]
    weights = [*folder.checkpoints.glob("step-*/model.safetensors"), *folder.checkpoints.glob("best.safetensors")]
    for path in sorted(weights):
        found += _in_file(path, str(path.relative_to(folder.path)), expected)
    return found


def _frozen_by_variant(folder: RunFolder) -> set[str]:
    """The matrices that the run's variant freezes, whatever the record says."""
    config = folder.config()
    sides = {"q": config.variant.q, "k": config.variant.k}
    return {
        f"blocks.{layer}.attention.{name}.{side.tensor}"
        for layer in range(config.num_layers)
        for name, side in sides.items()
        if side.tensor and not side.trained
    }


def _in_file(path: Path, place: str, expected: dict[str, str]) -> list[Finding]:
    try:
        hashes = {name: tensor_hash(weight) for name, weight in load_file(path).items() if name in expected}
    except Exception as error:  # safetensors raises its own and OSErrors, numpy TypeErrors for types it does not know
        raise UserError(f"{path} cannot be read: {error}") from None
    return [Finding(name, place, hashes.get(name) == digest) for name, digest in expected.items()]


def _record(folder: RunFolder, event: str, step: int, hashes: dict[str, str]) -> None:
    path = folder.path / FILE
    others = [other for other in _events(folder) if other["event"] != event] if path.exists() else []
    write_json(path, {"events": [*others, {"event": event, "step": step, "sha256": hashes}]})


def _events(folder: RunFolder) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = read_json(folder.path / FILE, SHAPE)["events"]
    return events
