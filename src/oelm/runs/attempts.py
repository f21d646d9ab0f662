"""Attempts at a run: who may start it, how often it was tried, and how each try ended.

A queue holds a run by a lock on `.claim` in its folder, which the run's process inherits: as long as that process
lives, no other queue starts the run, even if the queue that did is dead. attempts.jsonl tells queues what others did.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from oelm.errors import UserError
from oelm.processes import alive
from oelm.runfolder import RunFolder, append_line, is_there, last_line, read_lines

CONSOLE = "console.log"  # what the process of a run printed
PLAN = "plan.yaml"  # what a queue was told to run
ATTEMPTS = "attempts.jsonl"
TAIL_BYTES = 1 << 14
LINE = {"time": float, "event": str}
REFUSED = 2  # the exit code of what cannot be done, however often it is tried


def claim(folder: RunFolder) -> int | None:
    """A hold on a run against other queues: a file descriptor to be handed to its process, or None."""
    folder.path.mkdir(parents=True, exist_ok=True)
    file = os.open(folder.path / ".claim", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def is_claimed(folder: RunFolder) -> bool:
    """Whether a run's process, or a queue about to start it, holds it."""
    if not (folder.path / ".claim").exists():
        return False
    held = claim(folder)
    if held is None:
        return True
    os.close(held)
    return False


def began(folder: RunFolder, place: str) -> None:
    _note(folder, "start", place=place)


def ended(folder: RunFolder, code: int, cause: str, stopping: bool = False) -> None:
    """stopping: the queue was told to stop, and has told the run."""
    _note(folder, "end", code=code, cause=cause, stopping=stopping)


def _note(folder: RunFolder, event: str, **more: Any) -> None:
    who = {"queue": os.getpid(), "host": socket.gethostname()}
    append_line(folder.path / ATTEMPTS, {"time": time.time(), "event": event, **who, **more})


def attempts(folder: RunFolder, since: float) -> list[dict[str, Any]]:
    """What queues have noted since a time, or, before that, queues that are still at work: they share the tries."""
    return [line for line in read_lines(folder.path / ATTEMPTS, LINE) if line["time"] >= since or at_work(line)]


def at_work(line: dict[str, Any]) -> bool:
    """Whether the queue that has noted something is alive."""
    pid = line.get("queue")
    return line.get("host") == socket.gethostname() and type(pid) is int and alive(pid)


def last_cause(folder: RunFolder) -> str:
    """Why the last try that a queue saw the end of ended."""
    try:
        line = last_line(folder.path / ATTEMPTS, LINE)
    except UserError:
        return ""
    return str(line.get("cause", "")) if line and line["event"] == "end" else ""


def cause(folder: RunFolder, code: int) -> str:
    """Why a run's process ended as it did, in one line."""
    last = last_words(folder.path / CONSOLE)
    if code < 0:
        name = signal.Signals(-code).name
        killer = ", perhaps for want of memory" if name == "SIGKILL" else ""
        return f"killed by {name} from outside{killer}"
    return last or f"exit code {code}, without a word"


def last_words(path: Path) -> str:
    """The last thing that a process said, without the name of the command."""
    try:
        if not is_there(path):
            return ""
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except (OSError, UserError):
        return ""
    ours = [line for line in lines if line.startswith("oelm: ")]
    said = ours or [line for line in lines if line.strip()]
    return said[-1].removeprefix("oelm: ").strip() if said else ""
