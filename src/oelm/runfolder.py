"""The run folder: the one contract that everything after training reads.

    config.yaml          every field of the run
    manifest.json        run id, versions, hardware, git state, data hashes, commands, how the learning rate was chosen
    metrics.jsonl        training: a line per log_interval          (append-only)
    evals.jsonl          validation: a line per score               (append-only)
    timing_stats.json    where the time went
    freeze_audit.json    a hash per frozen matrix at its freeze and at the end
    status.json          running (with a heartbeat), finished, failed or interrupted
    training.log         what was said on the way
    tokenizer.json       the small vocabulary, where the corpus has one of its own
    tensorboard/         the metrics and scores once more, for TensorBoard
    samples/             text generated at the end
    checkpoints/         step-N/ (the newest two), last (names the newest), best.safetensors (weights only)

manifest.json says whose the folder is: it is the first to be written, and without it the others are somebody else's.
Files are written whole or not at all, but for the append-only ones, whose readers ignore a torn last line. Files are
read here, too, and held to the keys that somebody uses: what comes out of a reader needs no further doubt.
"""

from __future__ import annotations

import fcntl
import json
import os
import reprlib
import socket
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm import variants
from oelm.config import RunConfig, run_id
from oelm.errors import UserError, is_disk_full
from oelm.processes import alive

FORMAT = 2
# What a run writes beside its manifest.json.
RECORDS = (
    *("config.yaml", "metrics.jsonl", "evals.jsonl", "timing_stats.json", "freeze_audit.json", "status.json"),
    *("training.log", "tensorboard", "tokenizer.json", "samples", "checkpoints"),
)
HEARTBEAT_SECONDS = 5.0
DEAD_AFTER_SECONDS = 30.0
LARGEST = 1e306  # a perplexity is at most exp(700)
TAIL_BYTES = 1 << 14  # several lines of most append-only files

# The shape of JSON: a type; [shape] for a list; {key: shape} for keys that must be there; {str: shape} for any keys.
Shape = type | list[Any] | dict[Any, Any]

MANIFEST = {
    "run_id": str,
    "parameters": {"total": int, "trainable": int, "frozen": int},
    "data": {"dataset": str, "tokenizer": str, "sha256": {"train": str, "val": str}},
    "learning_rate": {
        "how": str,
        "grid": [float],
        "losses": list,
        "at_edge": bool,
        "budget_steps": int,
        "run_ids": [str],
    },
    "sessions": [
        {"engine": str, "device": str, "precision": str, "cpu_threads": int, "processes": int, "deterministic": bool}
    ],
}
STATUS = {"state": str, "heartbeat": float, "host": str, "pid": int}
PARTS = ("startup", "compiling", "training", "validation", "saving")
TIMING = {"median_step_time": float, "seconds_by_part": dict.fromkeys(PARTS, float)}
LINE = {"step": int}
METRICS = {**LINE, "loss": float, "step_time": float, "tokens_per_second": float}
HEADS = {"previous_token": [[float]], "induction": [[float]]}  # of a final score, where a run has noted them
LAYERS = {"attention_entropy": [float], "q_drift": [float], "k_drift": [float]}
SCORE = {
    **{**LINE, "final": bool, "loss": float, "ppl": float, "tokens_scored": int, "tokens_seen": int, "elapsed": float},
    **LAYERS,
}


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file so that a reader, or a machine that loses power, sees the old one or the new one."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    data = content.encode() if isinstance(content, str) else content
    try:
        with scratch.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def sweep(folder: Path) -> None:
    """Removes what write_whole has left there of processes that were killed in the midst of it."""
    for path in folder.glob(".*"):
        *_, pid = path.name.rpartition(".")
        if pid.isdecimal() and path.is_file() and not alive(int(pid)):
            with suppress(OSError):  # whoever may not clear up may still read
                path.unlink()


def write_json(path: Path, content: Any) -> None:
    write_whole(path, json.dumps(content, indent=2) + "\n")


def is_there(path: Path) -> bool:
    """Whether there is a file; what is no plain one, such as a pipe, is refused: reading it might never end."""
    try:
        plain = stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not plain:
        raise UserError(f"{path} is no plain file; move it out of the run folder")
    return True


def read_json(path: Path, shape: Shape, remedy: str = "restore it, or train the run again elsewhere") -> Any:
    """A JSON file of a run folder, of the given shape, or a UserError that names it and what is wrong."""
    if not is_there(path):
        raise _wrong(f"{path} is missing", remedy)
    content = path.read_bytes()
    return _parsed(content, shape, str(path), remedy)


def _parsed(content: bytes, shape: Shape, where: str, remedy: str) -> Any:
    try:
        parsed = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise _wrong(f"{where} is damaged: {error}", remedy) from None
    if fault := fault_in(parsed, shape, "content"):
        raise _wrong(f"{where} is damaged: {fault.removeprefix('content.')}", remedy)
    return parsed


def _wrong(what: str, remedy: str) -> UserError:
    return UserError(f"{what}; {remedy}" if remedy else what)


def fault_in(content: Any, shape: Shape, name: str) -> str:
    """The first thing that keeps JSON from having a shape, or nothing."""
    if content is None:
        return f"{name} is missing"
    wanted = shape if isinstance(shape, type) else type(shape)
    if not _is(content, wanted):
        return f"{name} should be of type {wanted.__name__}, not {reprlib.repr(content)}"
    parts: Iterable[tuple[Any, Shape, str]] = ()
    if isinstance(shape, list):
        parts = ((item, shape[0], f"{name}[{i}]") for i, item in enumerate(content))
    elif isinstance(shape, dict) and str in shape:
        parts = ((item, shape[str], f"{name}.{key}") for key, item in content.items())
    elif isinstance(shape, dict):
        parts = ((content.get(key), inner, f"{name}.{key}") for key, inner in shape.items())
    return next((fault for part in parts if (fault := fault_in(*part))), "")


def _is(content: Any, wanted: type) -> bool:
    """Whether a value is of a type: a whole number also does for a float.

    No whole number has more than 64 bits, and none is so large that a sum of some is none any more.
    """
    if type(content) is int:
        return wanted in (int, float) and abs(content) < 2**63
    if type(content) is float:
        return wanted is float and abs(content) < LARGEST
    return type(content) is wanted


def append_line(path: Path, record: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def read_lines(path: Path, shape: Shape = LINE) -> list[dict[str, Any]]:
    """The records of an append-only file; a last line that was cut off in the writing is not one."""
    if not is_there(path):
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    return [_parsed(line, shape, f"{path}, line {i}", "remove that line") for i, line in enumerate(lines, start=1)]


def last_line(path: Path, shape: Shape = LINE) -> dict[str, Any] | None:
    """The last whole record of an append-only file, without reading the others."""
    if not is_there(path):
        return None
    with path.open("rb") as file:
        size, tail = file.seek(0, os.SEEK_END), TAIL_BYTES
        while True:
            file.seek(max(0, size - tail))
            *lines, _ = file.read(tail).split(b"\n")
            if len(lines) > 1 or tail >= size:  # the first of several may be cut, the last cannot be
                break
            tail *= 2
    if not lines:
        return None
    record: dict[str, Any] = _parsed(lines[-1], shape, f"{path}, last line", "remove that line")
    return record


def line_at(path: Path, step: int, shape: Shape = LINE) -> dict[str, Any] | None:
    """The first whole record of a step in an append-only file, whose steps never fall; found by halving."""
    if not is_there(path):
        return None
    with path.open("rb") as file:
        low, high = 0, file.seek(0, os.SEEK_END)  # low is where a line begins, and no line before it is of the step
        while high - low > TAIL_BYTES:
            file.seek(middle := (low + high) // 2)
            file.readline()
            line = file.readline()
            if line.endswith(b"\n") and _parsed(line, LINE, f"a line of {path}", "remove that line")["step"] < step:
                low = file.tell()
            else:
                high = middle
        file.seek(low)
        for line in file:
            if not line.endswith(b"\n"):
                break
            record: dict[str, Any] = _parsed(line, shape, f"a line of {path}", "remove that line")
            if record["step"] >= step:
                return record if record["step"] == step else None
    return None


def cut_lines(path: Path, last_step: int) -> None:
    """Forgets the records after a step, a final score, which will be given anew, and a torn last line."""
    if path.exists():
        kept = [record for record in read_lines(path) if record["step"] <= last_step and not record.get("final")]
        write_whole(path, "".join(json.dumps(record) + "\n" for record in kept))


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def evals(self) -> Path:
        return self.path / "evals.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def exists(self) -> bool:
        return (self.path / "manifest.json").exists()

    def records(self) -> list[str]:
        """What there is in the folder that a run writes beside its manifest."""
        return [name for name in RECORDS if (self.path / name).exists()]

    def identified(self) -> tuple[RunConfig, dict[str, Any]]:
        """The config and the manifest, which must be of one run."""
        config, manifest = self.config(), self.manifest()
        if manifest["run_id"] != run_id(config, manifest["data"]["sha256"]):
            said = {**manifest, "max_lr": manifest["learning_rate"].get("value")}
            differing = [
                f"{name} is {getattr(config, name)} in the one, {said[name]} in the other"
                for name in ("model_type", "recipe", "seed", "max_lr")
                if said.get(name) not in (None, getattr(config, name))
            ]
            raise UserError(
                f"{self.path}: config.yaml and manifest.json are not of one run "
                f"({'; '.join(differing) or 'the run_id is not that of the config and the data'}); "
                f"restore the one that was changed, or train the run again elsewhere"
            )
        if other := redefined(config, manifest):
            raise UserError(f"{self.path}: {other}; move it away, or train the run again elsewhere")
        return config, manifest

    def config(self) -> RunConfig:
        if not is_there(self.path / "config.yaml"):
            raise UserError(f"{self.path} is not a run folder: it has no config.yaml")
        try:
            return RunConfig(self.path / "config.yaml")
        except UserError as error:
            raise UserError(f"the run in {self.path} cannot be read: {error}") from None

    def manifest(self) -> dict[str, Any]:
        path = self.path / "manifest.json"
        found = read_json(path, {"format": int})["format"]
        if found != FORMAT:
            raise UserError(f"{path} has format {found}; this version reads {FORMAT}")
        manifest: dict[str, Any] = read_json(path, MANIFEST)
        return manifest

    def status(self) -> dict[str, Any]:
        """status.json, where a run that shows no sign of life, though it says it is running, is called dead."""
        path = self.path / "status.json"
        if not is_there(path):
            return {"state": "dead"}
        status: dict[str, Any] = read_json(path, STATUS, "remove it, and oelm train goes on from the last checkpoint")
        if status["state"] == "running" and not _breathes(status):
            status["state"] = "dead"
        return status

    def timing(self) -> dict[str, Any]:
        timing: dict[str, Any] = read_json(self.path / "timing_stats.json", TIMING)
        return timing

    def scores(self) -> list[dict[str, Any]]:
        """Every validation, in order."""
        return read_lines(self.evals, SCORE)

    def last_metrics(self) -> dict[str, Any] | None:
        """The newest line of training, read from the end of a file that may be long."""
        return last_line(self.metrics, METRICS)

    def last_score(self) -> dict[str, Any] | None:
        """The newest validation, read from the end of the file."""
        return last_line(self.evals, SCORE)

    def score_at(self, step: int) -> dict[str, Any] | None:
        """The validation on the way after a step; not the final one, which follows the one after the last step."""
        score = line_at(self.evals, step, SCORE)
        return None if score is None or score["final"] else score

    def final_eval(self) -> dict[str, Any] | None:
        """The score on the whole validation set after the last step, if the run got there."""
        return next((score for score in reversed(self.scores()) if score["final"]), None)

    def log(self, line: str) -> None:
        with (self.path / "training.log").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


def redefined(config: RunConfig, manifest: dict[str, Any]) -> str:
    """What the name of its variant stood for when a run was made, if it stands for something else now."""
    then = str(manifest.get("variant", config.variant))
    if variants.spells(then, config.variant):
        return ""
    return f"{config.model_type} was {then} when the run was made, and is {config.variant} now"


def _breathes(status: dict[str, Any]) -> bool:
    if time.time() - status["heartbeat"] > DEAD_AFTER_SECONDS:
        return False
    if status["host"] != socket.gethostname():
        return True
    return alive(status["pid"])


def find_runs(paths: Sequence[str | Path]) -> list[RunFolder]:
    """The run folders that paths name: each path itself, or all those below it."""
    if not paths:
        raise UserError("name at least one run folder, or a folder with run folders below it")
    found: list[RunFolder] = []
    for path in map(Path, paths):
        below = runs_below(path)
        if not below:
            raise UserError(f"{path} is no run folder, and there is none below it")
        found += below
    return found


def runs_below(path: Path) -> list[RunFolder]:
    """The run folders in a folder, itself among them; what is inside of one is not searched."""
    found, seen = [], set()
    for place, folders, files in os.walk(path, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # by a link, such as one to a folder above
            folders.clear()
            continue
        seen.add(real)
        if "manifest.json" in files:
            found.append(RunFolder(Path(place)))
            folders.clear()
    return sorted(found, key=lambda folder: folder.path)


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Holds the folder for this process alone. The lock goes with the process, however it ends."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        file = (folder.path / ".lock").open("a")
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"--out_dir {folder.path}: there is a file of that name") from None
    except PermissionError:
        raise UserError(f"--out_dir {folder.path} cannot be written: permission denied") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is training in {folder.path}; wait for it or stop it first") from None
        for place in (folder.path, folder.checkpoints):
            sweep(place)
        yield


class Heart:
    """Keeps status.json true: a heartbeat while the run lives, and the state in which it ended."""

    def __init__(self, folder: RunFolder, max_steps: int, device: str) -> None:
        self._path = folder.path / "status.json"
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._content: dict[str, Any] = {
            "state": "running",
            "step": 0,
            "max_steps": max_steps,
            "message": "",
            "device": device,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "heartbeat": time.time(),
        }
        self._write()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="oelm-heart")
        self._thread.start()

    def at(self, step: int) -> None:
        self._content["step"] = step

    def end(self, state: str, message: str = "", **more: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._content |= {"state": state, "message": message, **more}
        try:
            self._write()
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._write_in_place()

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # a full disk must not kill the heart; the training thread meets it and says so
                self._write()

    def _write(self) -> None:
        with self._lock:
            write_json(self._path, {**self._content, "heartbeat": time.time()})

    def _write_in_place(self) -> None:
        """Over the old content, whose blocks are there already: on a full disk there are none for a new file."""
        with self._path.open("r+b") as file:
            file.write(json.dumps(self._content).encode().ljust(self._path.stat().st_size))
