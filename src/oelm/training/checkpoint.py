"""Checkpoints: atomic, exact, no pickle.

A checkpoint is a folder step-N with the logical model, the optimiser's moments by parameter name, and what else a run
needs to go on as if it had never stopped. It is written beside its place and renamed into it; `last` then names it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor, nn

from oelm.errors import UserError
from oelm.runfolder import PARTS, read_json, write_json, write_whole

KEPT = 2
STATE = {
    "run_id": str,
    "step": int,
    "due": bool,
    "since_log": [[float]],
    "engine": dict,
    "clock": {"seconds": dict.fromkeys(PARTS, float), "validations": int},
}


class DamagedError(Exception):
    """A checkpoint that cannot be used, and why."""


def save(folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: dict[str, Any]) -> Path:
    """Writes checkpoints/step-N, a file per entry of `tensors`, and makes it the last; only the newest two stay."""
    final = folder / f"step-{step}"
    if final.exists():  # of the same tensors; but what was due at the step may have been done since
        write_json(final / "state.json", {"step": step, **state})
        return final
    scratch = folder / f".step-{step}.unfinished"
    folder.mkdir(exist_ok=True)
    for left_over in folder.glob(".step-*.unfinished"):
        shutil.rmtree(left_over)
    try:
        scratch.mkdir()
        for name, content in tensors.items():
            write_whole(scratch / f"{name}.safetensors", serialize(dict(content)))
        write_json(scratch / "state.json", {"step": step, **state})
        scratch.rename(final)
        _sync(folder)
        write_whole(folder / "last", final.name)
    except Exception:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    for old in by_age(folder)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def save_best(folder: Path, weights: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """The weights alone, replaced whole; about: run_id, step and val_loss."""
    folder.mkdir(exist_ok=True)
    # One entry: the library writes several in an order that changes from process to process.
    metadata = {"oelm": json.dumps(dict(about))}
    write_whole(folder / "best.safetensors", serialize(dict(weights), metadata=metadata))


def about_best(path: Path) -> dict[str, Any]:
    """What save_best noted of the weights."""
    with safe_open(path, framework="pt") as file:
        about: dict[str, Any] = json.loads(file.metadata()["oelm"])
    return {"run_id": str(about["run_id"]), "step": int(about["step"])}


def step_of_weights(path: Path, run_id: str) -> int:
    """The step of a file of weights, a checkpoint's or the best ones; raises DamagedError where they are not ours."""
    try:
        about = about_best(path) if path.name == "best.safetensors" else read_state(path.parent)
    except (OSError, UserError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DamagedError(f"cut short or damaged ({error})") from None
    if about["run_id"] != run_id:
        raise DamagedError("it is of another run")
    step: int = about["step"]
    if path.name != "best.safetensors" and step != step_of(path.parent):
        raise DamagedError(f"it is of step {step}, whatever its name says")
    return step


def forget_best(folder: Path, last_step: int) -> None:
    """Drops the best weights if they came after a step: the score that made them the best is no longer on record.

    Those that were the best before them are gone; a run that comes by again saves what is better than its best so far.
    """
    path = folder / "best.safetensors"
    with suppress(SafetensorError, ValueError, KeyError, TypeError):  # what cannot be read shows nothing either
        if path.exists() and about_best(path)["step"] > last_step:
            path.unlink()


@dataclass(frozen=True)
class Expected:
    """What a checkpoint must be like: whose, which parameters it has moments of, the hashes of its frozen matrices."""

    run_id: str
    trained: set[str]
    frozen: dict[str, str]


def newest(
    folder: Path, say: Callable[[str], None], model: nn.Module, expected: Callable[[int], Expected]
) -> Path | None:
    """The newest checkpoint that can be used, passing over damaged ones aloud. None where there is none at all."""
    damaged: list[Path] = []
    for path in by_age(folder):
        try:
            check(path, model, expected(step_of(path)))
        except DamagedError as damage:
            say(f"checkpoint {path} cannot be used: {damage}; trying the one before it")
            damaged.append(path)
            continue
        for bad in damaged:
            say(f"set aside as {bad.rename(_free_name(folder, f'damaged-{bad.name}')).name}")
        write_whole(folder / "last", path.name)
        return path
    if damaged:
        raise UserError(
            f"none of the checkpoints in {folder} can be used (see above); "
            f"to start the run anew, remove {folder.parent} or choose another --out_dir"
        )
    return None


def _free_name(folder: Path, name: str) -> Path:
    names = (name if i == 1 else f"{name}-{i}" for i in itertools.count(1))
    return next(path for path in (folder / each for each in names) if not path.exists())


def go_back(path: Path) -> None:
    """Makes a checkpoint the newest one, for a run that is to go on from there: later ones are dropped."""
    for later in by_age(path.parent):
        if later == path:
            break
        shutil.rmtree(later)
    write_whole(path.parent / "last", path.name)


def last(folder: Path) -> Path | None:
    """The checkpoint that `last` names."""
    pointer = folder / "last"
    return folder / pointer.read_text() if pointer.exists() else None


def check(path: Path, model: nn.Module, expected: Expected) -> None:
    """Raises DamagedError unless the checkpoint is whole, this run's of this step, and true to the frozen matrices."""
    step_of_weights(path / "model.safetensors", expected.run_id)
    try:
        with safe_open(path / "optimizer.safetensors", framework="pt") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        saved = load_file(path / "model.safetensors")
        step_times = load_file(path / "clock.safetensors")["step_times"]
    except (OSError, UserError, ValueError, KeyError, SafetensorError) as error:
        raise DamagedError(f"cut short or damaged ({error})") from None
    if step_times.ndim != 1 or not step_times.is_floating_point():
        raise DamagedError("cut short or damaged (step_times is no list of times)")
    shapes = _shapes(weights(model))
    _same_shapes(_shapes(saved), shapes)
    moments = {f"{name}.{key}": shapes[name] for name in expected.trained for key in ("exp_avg", "exp_avg_sq")}
    _same_shapes(found, moments | {f"{name}.step": () for name in expected.trained})
    for name, digest in expected.frozen.items():
        if name not in saved or tensor_hash(saved[name]) != digest:
            raise DamagedError(f"the frozen matrix {name} is not the one that was frozen")


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _same_shapes(found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]]) -> None:
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise DamagedError(f"{name} has the shape {found.get(name)} instead of {expected.get(name)}")


def load(path: Path, model: nn.Module, moments: Mapping[str, Tensor]) -> dict[str, Any]:
    """Restores the model and the optimiser's moments in place and returns the rest of the state."""
    model.load_state_dict(load_file(path / "model.safetensors"))
    for name, saved in load_file(path / "optimizer.safetensors").items():
        moments[name].copy_(saved)
    return {**read_state(path), **load_file(path / "clock.safetensors")}


def read_state(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = read_json(path / "state.json", STATE, remedy="")
    for key in ("best", "last_val"):
        if not isinstance(state.get(key), float | None):
            raise ValueError(f"{key} in state.json is no number")
    if any(len(pair) != 2 for pair in state["since_log"]):
        raise ValueError("since_log in state.json has something else than pairs of a loss and a norm")
    return state


def tensor_hash(tensor: Tensor) -> str:
    """sha256 over a tensor's bytes, as stored in fp32."""
    return hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The logical model's tensors by name."""
    return {name: p.detach() for name, p in model.named_parameters()}


def by_age(folder: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    steps = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()]
    return sorted(steps, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """The step of a checkpoint, from its name."""
    return int(path.name.removeprefix("step-"))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
