"""Trackers: TensorBoard's files in the run folder, and trackio or Weights & Biases where --track asks for one.

The run folder is the truth and these mirror it. Whatever one of them raises is said once, and the run goes on without
it. Nothing is sent from a thread of ours, and nothing here draws a random number.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from oelm.config import RunConfig
from oelm.errors import UserError

TRAIN = ("loss", "grad_norm", "lr", "step_time", "tokens_per_second")
SCORE = ("loss", "ppl")


def check_tracker(config: RunConfig) -> None:
    """Refuses a tracker that is not installed, before anything is trained."""
    if config.track is None:
        return
    try:
        spec = importlib.util.find_spec(config.track)
    except ValueError:
        spec = None
    if spec is None or spec.origin is None:  # a mere folder of that name, such as they leave behind, has no origin
        raise UserError(f"--track {config.track}: it is not installed; pip install {config.track}")


class Tracker(Protocol):
    """What the run's figures are handed to."""

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class Trackers:
    """All the trackers of a run that have not failed yet."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._open: dict[str, Tracker] = {}

    def start(self, config: RunConfig, folder: Path, run_id: str, done: int) -> None:
        """Opens the trackers of a run of which so many steps are on record; what they heard of later ones is void."""
        self._try("TensorBoard", lambda: self._add("TensorBoard", TensorBoard(folder / "tensorboard", done)))
        if config.track is not None:
            name = config.track
            self._try(name, lambda: self._add(name, Service(name, config, folder, run_id)))

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Passes a line of metrics.jsonl on."""
        self._log(record["step"], {f"train/{name}": record[name] for name in TRAIN})

    def score(self, record: Mapping[str, Any]) -> None:
        """Passes a line of evals.jsonl on."""
        kind = "final" if record["final"] else "val"
        self._log(record["step"], {f"{kind}/{name}": record[name] for name in SCORE})

    def close(self) -> None:
        for name in list(self._open):
            self._try(name, self._open[name].close)
        self._open.clear()

    def _add(self, name: str, tracker: Tracker) -> None:
        self._open[name] = tracker

    def _log(self, step: int, values: dict[str, float]) -> None:
        for name, tracker in list(self._open.items()):
            self._try(name, lambda tracker=tracker: tracker.log(step, values))  # type: ignore[misc]

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except (Exception, SystemExit) as error:  # not ours to foresee; a run must not end with its mirror
            self._open.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            with suppress(OSError):  # a full disk is the run's own affair
                self._say(f"{name} gets nothing from here on: {reason}")


class TensorBoard:
    """A file of events, each on the disk as soon as it is written. Where a run goes on, its reader drops what was
    written after the checkpoint."""

    def __init__(self, folder: Path, done: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event = Event
        folder.mkdir(exist_ok=True)
        # Readers take the files of a folder in the order of their names, which begin with the time.
        path = folder / f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        self._file = path.open("wb")
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        self._write(step=done + 1, session_log=SessionLog(status=SessionLog.START))

    def log(self, step: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._write(step=step, summary=summary)

    def close(self) -> None:
        self._file.close()

    def _write(self, **content: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
        self._file.flush()


class Service:
    """trackio or wandb, which are used in the same way."""

    def __init__(self, name: str, config: RunConfig, folder: Path, run_id: str) -> None:
        self._module = importlib.import_module(name)
        place = str(folder.resolve())
        about: dict[str, Any] = {
            "project": "oelm",
            "name": "/".join(Path(place).parts[-3:]),
            "config": {**config.identity(), "run_id": run_id},
            "resume": "allow",
        }
        if name == "wandb":  # the same run again when it goes on
            about |= {"id": hashlib.sha256(f"{run_id} {place}".encode()).hexdigest()[:16], "dir": place}
        self._module.init(**about)

    def log(self, step: int, values: dict[str, float]) -> None:
        self._module.log(values, step=step)

    def close(self) -> None:
        self._module.finish()
