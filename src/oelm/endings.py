"""How a command ends before its end: one line for the person who typed it, and an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from oelm.errors import (
    InterruptedRunError,
    RunFailedError,
    TerminatedError,
    UserError,
    is_disk_full,
    is_lost_peer,
    is_out_of_memory,
)


@contextlib.contextmanager
def heeding_sigterm() -> Iterator[None]:
    def end(number: int, frame: object) -> None:
        raise TerminatedError

    if threading.current_thread() is not threading.main_thread():  # which alone can take signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def explain(error: BaseException) -> int:
    """Says what went wrong and returns the exit code. What we have no line for, such as a bug of ours, is raised."""
    if not _speaks() and is_lost_peer(error):  # the first process has left, and says why
        return 1
    code, message = _judge(error)
    if message and _speaks():
        print(f"oelm: {message}", file=sys.stderr)
    return code


def _speaks() -> bool:
    """Of the processes that torchrun started, only the first; where the environment makes no sense, each."""
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return not (rank.isdecimal() and size.isdecimal() and 0 < int(rank) < int(size))


def _judge(error: BaseException) -> tuple[int, str]:
    if isinstance(error, UserError):
        return 2, str(error)
    if isinstance(error, RunFailedError):
        return 1, str(error)
    if isinstance(error, TerminatedError):
        return 128 + signal.SIGTERM, "terminated"
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if is_out_of_memory(error):
        return 1, "out of memory; in training, a smaller --batch_size or a larger --accumulation needs less"
    if isinstance(error, OSError) and is_disk_full(error):
        return 2, f"no space left on the disk ({error.filename or 'while writing'}); free some and run it again"
    if isinstance(error, BrokenPipeError):
        return 1, ""
    if isinstance(error, OSError) and error.filename:
        return 2, f"{error.filename}: {(error.strerror or str(error)).lower()}"
    if isinstance(error, InterruptedRunError):
        return 128 + error.signal, str(error)
    raise error
