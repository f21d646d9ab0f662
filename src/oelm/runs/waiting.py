"""What queues have still to start: each keeps a file below the outputs that says so, for those who watch."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oelm.errors import UserError
from oelm.processes import alive
from oelm.runfolder import DEAD_AFTER_SECONDS, read_json, write_json

FOLDER = ".queues"
SHAPE = {
    "host": str,
    "pid": int,
    "heartbeat": float,
    "waiting": [{"run": str, "model_type": str, "seed": int, "max_steps": int, "why": str}],
}


@dataclass(frozen=True)
class Waiting:
    """A run that a queue has yet to start, and what it is waiting for."""

    run: str  # its folder, as an absolute path
    model_type: str
    seed: int
    max_steps: int
    why: str


class Notice:
    """This queue's file."""

    def __init__(self, outputs: Path) -> None:
        folder = outputs / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.json"):
            if _of_the_living(path) is None:
                path.unlink(missing_ok=True)
        self._path = folder / f"{socket.gethostname()}-{os.getpid()}.json"

    def write(self, waiting: Sequence[Waiting]) -> None:
        who = {"host": socket.gethostname(), "pid": os.getpid(), "heartbeat": time.time()}
        write_json(self._path, {**who, "waiting": [asdict(each) for each in waiting]})

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def waiting(outputs: Path) -> list[Waiting]:
    """What all living queues on these outputs have yet to start."""
    queues = [_of_the_living(path) for path in sorted((outputs / FOLDER).glob("*.json"))]
    found = {each["run"]: each for queue in queues if queue for each in queue["waiting"]}
    return [Waiting(**{name: each[name] for name in Waiting.__dataclass_fields__}) for each in found.values()]


def _of_the_living(path: Path) -> dict[str, Any] | None:
    """The content of a queue's file; None where the queue has died, or the file makes no sense."""
    try:
        queue: dict[str, Any] = read_json(path, SHAPE)
    except (UserError, OSError):
        return None
    if queue["host"] == socket.gethostname():
        return queue if alive(queue["pid"]) else None
    return queue if time.time() - queue["heartbeat"] < DEAD_AFTER_SECONDS else None
