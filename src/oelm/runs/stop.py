"""`oelm stop`: running runs save and end, and queues start no more of what was named."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from oelm.errors import RunFailedError, UserError
from oelm.runfolder import RunFolder, runs_below
from oelm.runs.attempts import is_claimed
from oelm.runs.matrix import TUNING
from oelm.runs.standing import STOP
from oelm.runs.waiting import waiting


def stop(names: Sequence[str], outputs: Path, seconds: float, say: Callable[[str], None] = print) -> None:
    """Stops experiments, matrices or single runs by name or path; `all`: everything below the outputs."""
    if not names:
        raise UserError("name what to stop: an experiment, a matrix, a run folder, or all")
    places = [place for name in names for place in _places(name, outputs)]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
        (place / STOP).touch()
    left = [each for each in waiting(outputs) if any(_within(each.run, place) for place in places)]
    if left:
        say(f"{len(left)} waiting {'run' if len(left) == 1 else 'runs'} will not be started")
    alive = [folder for place in places for folder in _alive(place, say)]
    if not alive and not left:
        say("nothing of that was running or waiting")
    _see_to_their_ends(alive, seconds, say)


def _places(name: str, outputs: Path) -> list[Path]:
    """The folder that a name stands for; for an arm, also that of the runs that look for its learning rate."""
    if name == "all":
        return [outputs]
    experiment, *arm = Path(name).parts or (name,)
    trials = outputs.joinpath(experiment, TUNING, *arm)
    known = [each.run for each in waiting(outputs)]
    found = [path for path in (outputs / name, trials) if path.is_dir() or any(_within(run, path) for run in known)]
    if trials in found and arm:  # whose own runs are yet to come
        found = [outputs / name, trials]
    if not found and not Path(name).is_dir():
        raise UserError(f"{name} is neither an experiment below {outputs} nor a run folder; see oelm status")
    return found or [Path(name)]


def _within(run: str, place: Path) -> bool:
    return Path(run).is_relative_to(place.absolute())


def _alive(place: Path, say: Callable[[str], None]) -> list[RunFolder]:
    """The runs in a folder that have a process on this machine, be it one that has only just begun."""
    claimed = [RunFolder(path.parent) for path in place.rglob(".claim")]
    found = []
    for folder in dict.fromkeys([*claimed, *runs_below(place)]):
        status = _status(folder)
        if status["state"] == "running" and status["host"] != socket.gethostname():
            say(f"{folder.path} runs on {status['host']}: stop it there")
        elif status["state"] == "running" or is_claimed(folder):
            found.append(folder)
    return found


def _see_to_their_ends(alive: Sequence[RunFolder], seconds: float, say: Callable[[str], None]) -> None:
    """Asks each run once, as soon as it can hear, to save and end, and waits until it has."""
    left, asked, until = list(alive), set[RunFolder](), time.monotonic() + seconds
    while left and time.monotonic() < until:
        for folder in list(left):
            status = _status(folder)
            if status["state"] == "running" and folder not in asked:
                with suppress(ProcessLookupError):
                    os.kill(status["pid"], signal.SIGTERM)
                say(f"{folder.path} was asked to stop (pid {status['pid']})")
                asked.add(folder)
            elif status["state"] != "running" and not is_claimed(folder):
                say(f"{folder.path}: {status['state']} at step {status.get('step', 0):,}")
                left.remove(folder)
        time.sleep(0.1)
    if left:
        names = ", ".join(str(folder.path) for folder in left)
        raise RunFailedError(
            f"still running after {seconds:g} seconds: {names}; they end after their step, or kill them"
        )


def _status(folder: RunFolder) -> dict[str, Any]:
    try:
        return folder.status()
    except UserError:  # what cannot be read cannot be told to stop
        return {"state": "unreadable"}
