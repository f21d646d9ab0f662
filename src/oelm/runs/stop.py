"""`oelm stop`: running runs save and end, and queues start no more of what was named."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from oelm.errors import RunFailedError, UserError
from oelm.runfolder import RunFolder, runs_below
from oelm.runs.standing import STOP
from oelm.runs.waiting import waiting


def stop(names: Sequence[str], outputs: Path, seconds: float, say: Callable[[str], None] = print) -> None:
    """Stops experiments, matrices or single runs by name or path; `all`: everything below the outputs."""
    if not names:
        raise UserError("name what to stop: an experiment, a matrix, a run folder, or all")
    places = [_place(name, outputs) for name in names]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        (place / STOP).touch()
    asked = [folder for place in places for folder in runs_below(place) if _asked(folder, say)]
    left = [each for each in waiting(outputs) if any(Path(each.run).is_relative_to(place) for place in places)]
    if left:
        say(f"{len(left)} waiting {'run' if len(left) == 1 else 'runs'} will not be started")
    if not asked and not left:
        say("nothing of that was running or waiting")
    _await_ends(asked, seconds, say)


def _place(name: str, outputs: Path) -> Path:
    """The folder that a name stands for."""
    if name == "all":
        return outputs
    there = [path for path in (outputs / name, Path(name)) if path.is_dir()]
    planned = [outputs / name for each in waiting(outputs) if Path(each.run).is_relative_to(outputs / name)]
    if not there and not planned:
        raise UserError(f"{name} is neither an experiment below {outputs} nor a run folder; see oelm status")
    return (there or planned)[0]


def _asked(folder: RunFolder, say: Callable[[str], None]) -> bool:
    """Asks a running run to save and end; says which."""
    with suppress(UserError):
        status = folder.status()
        if status["state"] != "running":
            return False
        if status["host"] != socket.gethostname():
            say(f"{folder.path} runs on {status['host']}: stop it there")
            return False
        with suppress(ProcessLookupError):
            os.kill(status["pid"], signal.SIGTERM)
        say(f"{folder.path} was asked to stop (pid {status['pid']})")
        return True
    return False


def _await_ends(asked: Sequence[RunFolder], seconds: float, say: Callable[[str], None]) -> None:
    left, until = list(asked), time.monotonic() + seconds
    while left and time.monotonic() < until:
        for folder in [each for each in left if each.status()["state"] != "running"]:
            status = folder.status()
            say(f"{folder.path}: {status['state']} at step {status.get('step', 0):,}")
            left.remove(folder)
        time.sleep(0.1)
    if left:
        names = ", ".join(str(folder.path) for folder in left)
        raise RunFailedError(
            f"still running after {seconds:g} seconds: {names}; they end after their step, or kill them"
        )
