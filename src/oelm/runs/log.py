"""`oelm log`: what a run has said, and what it says next."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from oelm.errors import UserError, did_you_mean, until_ctrl_c
from oelm.runfolder import RunFolder
from oelm.runs.overview import Overview, overviews

SECONDS_BETWEEN_LOOKS = 0.3
TAIL = 1 << 18  # bytes from the end of a log that are enough for what a person reads
TRACEBACK = "Traceback (most recent call last)"


def find(name: str, outputs: str, may_come: bool) -> RunFolder:
    """The run that a path or a name means. Of several, the one that is running; it may be one that is yet to begin."""
    path = Path(name)
    if (path / "training.log").exists() or (path / "manifest.json").exists():
        return RunFolder(path)
    known = overviews(path if path.is_dir() else Path(outputs))
    runs = known if path.is_dir() else [run for run in known if _named(name, run)]
    if not runs and may_come and "/" in name:
        return RunFolder(path)
    if not runs:
        nearest = did_you_mean(name, sorted({part for run in known for part in Path(run.path).parts}))
        there_is_none = f"{name} is no run folder, and there is no run of that name in {outputs}"
        raise UserError(f"{there_is_none}; {nearest}".strip(" ;"))
    return RunFolder(Path(_choice(name, runs).path))


def _named(name: str, run: Overview) -> bool:
    """Whether a name is a part of a run's path: GPT-04, or GPT-04/seed-1."""
    wanted = [part.lower() for part in Path(name).parts]
    parts = [part.lower() for part in Path(run.path).parts]
    return any(parts[i : i + len(wanted)] == wanted for i in range(len(parts)))


def _choice(name: str, runs: Sequence[Overview]) -> Overview:
    if len(runs) == 1:
        return runs[0]
    active = sorted((run for run in runs if run.active), key=_last_word)
    if active:
        print(f"{name} has {len(runs)} runs, this is {active[-1].path}", file=sys.stderr)
        return active[-1]
    listed = "; ".join(f"{run.path} ({run.state})" for run in runs)
    raise UserError(f"{name} has {len(runs)} runs, and none is running; name one of them: {listed}")


def _last_word(run: Overview) -> float:
    log = Path(run.path) / "training.log"
    return log.stat().st_mtime if log.exists() else 0.0


def show(folder: RunFolder, lines: int, follow: bool) -> None:
    """Prints the end of a log, and goes on as it is written if that is asked for."""
    if lines < 0:
        raise UserError(f"-n {lines} must be 0 or more")
    path = folder.path / "training.log"
    if not follow:
        if not path.exists():
            raise UserError(f"{path} is not there yet; -f waits for it")
        for line in said(folder, lines):
            print(line)
        return
    if not path.exists():
        print(f"waiting for {path}", file=sys.stderr)
    Follower(path, lines).follow(lambda text: print(text, end="", flush=True))


def said(folder: RunFolder, lines: int) -> list[str]:
    """The end of training.log; of a run that failed, the traceback below it."""
    text = tail(folder.path / "training.log", lines)
    return [*text, "", *traceback] if (traceback := last_traceback(folder)) else text


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file that may be long, or not there."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            content = file.read()
    except FileNotFoundError:
        return []
    whole = content.partition(b"\n")[2] if size > TAIL else content
    return whole.decode(errors="replace").splitlines()[-lines:] if lines else []


def last_traceback(folder: RunFolder) -> list[str]:
    """What Python said when a run failed that somebody started with its output in console.log."""
    try:
        failed = folder.status()["state"] in ("failed", "dead")
    except (UserError, OSError):
        failed = True
    text = tail(folder.path / "console.log", 10_000) if failed else []
    begins = [i for i, line in enumerate(text) if line.startswith(TRACEBACK)]
    return text[begins[-1] :] if begins else []


class Follower:
    """Hands on what is written to a file, from some lines before its end on; the file may come late, or begin anew."""

    def __init__(self, path: Path, lines: int) -> None:
        self._path, self._lines = path, lines
        self._place: int | None = None  # up to where it was read
        self._inode = 0

    def follow(self, hand_on: Callable[[str], None]) -> None:
        with until_ctrl_c():
            while True:
                if text := self.news():
                    hand_on(text)
                time.sleep(SECONDS_BETWEEN_LOOKS)

    def news(self) -> str:
        """The whole lines that are new."""
        try:
            with self._path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if self._place is None:
                    self._place = _place_of_last(file.read(), self._lines)
                elif stat.st_ino != self._inode or stat.st_size < self._place:
                    self._place = 0
                self._inode = stat.st_ino
                file.seek(self._place)
                content = file.read()
        except FileNotFoundError:
            self._place = 0  # all of what comes is new
            return ""
        whole = content[: content.rfind(b"\n") + 1]
        self._place += len(whole)
        return whole.decode(errors="replace")


def _place_of_last(content: bytes, lines: int) -> int:
    """Where the last lines of a file begin; one that is not whole yet is none."""
    whole = content[: content.rfind(b"\n") + 1]
    last = whole.split(b"\n")[:-1][-lines:] if lines else []
    return len(whole) - sum(len(line) + 1 for line in last)
