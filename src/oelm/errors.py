"""The ways in which a command ends before its end, each with one line for the person who typed it."""

import difflib
import errno
import numbers
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class UserError(Exception):
    """What was asked for cannot be done: the message names the file or flag and what to do. Exit code 2."""


class RunFailedError(Exception):
    """A run that was set up properly broke down on the way, such as by a loss that is not finite. Exit code 1."""


class DivergedError(RunFailedError):
    """The loss of a run is no number any more."""


class InterruptedRunError(Exception):
    """A run was asked to stop, and has saved what it needs to go on. Exit code 128 + the signal's number."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does: what is half done is cleared away. fit() has a way of its own."""


@contextmanager
def until_ctrl_c() -> Iterator[None]:
    """For what a person looks at until they have seen enough: Ctrl-C ends it, and is no mishap."""
    try:
        yield
    except TerminatedError:
        raise
    except KeyboardInterrupt:
        return


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says so: Python's own, or PyTorch's, on a GPU and on a CPU."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that there is no room for a file: on the disk, or in the user's share of it."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_lost_peer(error: BaseException) -> bool:
    """Whether the network of a run's processes says that one of them is gone."""
    words = ("closed by peer", "Connection reset", "NCCL communicator was aborted")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number, Python's or NumPy's; what comes from Python may be anything."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a number, Python's or NumPy's."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_truth(value: Any) -> bool:
    """Whether a value is true or false, Python's or NumPy's."""
    return isinstance(value, bool | np.bool_)


KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}  # for messages


def is_plain_name(name: str) -> bool:
    """Whether a name can be that of a folder, and is no path."""
    return bool(name) and not name.startswith(".") and not {"/", "\0"} & set(name)


def known(kind: str, name: str, names: Iterable[str], where: str = "", otherwise: str = "") -> str:
    """`name` if it is one of `names`; otherwise an error that offers the nearest."""
    names = list(names)
    if name in names:
        return name
    raise UserError(
        f"unknown {kind} {name!r}{where}: {did_you_mean(name, names)}There are: {', '.join(names)}{otherwise}"
    )


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question with the name that is nearest, if one is near; otherwise nothing."""
    nearest = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    return f"did you mean {nearest[0]}? " if nearest else ""
