"""A folder that appears under its name only when it is complete."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oelm.errors import UserError, is_disk_full


class TakenError(Exception):
    """By now there is something else under the folder's name."""


@contextmanager
def becoming(target: Path, replace: bool) -> Iterator[Path]:
    """A hidden folder that becomes `target` when its block ends well, and vanishes when it does not.

    A folder cannot take another's place in one stroke: what is to be replaced is put aside under a hidden name first.
    Whoever is killed at that point leaves no `target`; tidy() puts the old one back.
    """
    try:
        with _mark(target) as mark:
            scratch = _beside(target, "unfinished", mark)
            try:
                scratch.mkdir()
                yield scratch
                for path in scratch.iterdir():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
                _put(scratch, target, _beside(target, "replaced", mark), replace)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        if not is_disk_full(error):
            raise
        raise UserError(f"no space left on the disk while preparing {target}; free some and run it again") from None


@contextmanager
def _mark(target: Path) -> Iterator[str]:
    """A word that is in the names of what this process makes for `target`.

    A file of that word is locked until the end. The lock goes with the process, also where others see another number
    for it: on another host, in another container.
    """
    _make(target.parent)
    descriptor, path = _locked_file(target)
    try:
        yield path.name.rpartition("-")[2]
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked_file(target: Path) -> tuple[int, Path]:
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.lock-", dir=target.parent)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:  # it was not tidied away by somebody between the two
            return descriptor, Path(name)
        os.close(descriptor)


def _beside(target: Path, kind: str, mark: str) -> Path:
    return target.with_name(f".{target.name}.{kind}-{mark}")


def _make(parent: Path) -> None:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if not os.access(parent, os.W_OK):
            raise PermissionError
    except (FileExistsError, NotADirectoryError):
        file = next((path for path in (parent, *parent.parents) if path.is_file()), parent)
        raise UserError(f"--data-dir {parent}: {file} is a file, not a folder") from None
    except PermissionError:
        raise UserError(f"--data-dir {parent} cannot be written: permission denied") from None


def _put(scratch: Path, target: Path, aside: Path, replace: bool) -> None:
    try:
        if replace and target.exists():
            target.rename(aside)
        scratch.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise TakenError from None
        raise
    finally:
        if aside.exists() and not target.exists():
            aside.rename(target)
        shutil.rmtree(aside, ignore_errors=True)


def tidy(target: Path) -> None:
    """Puts back what a process was replacing when it was killed, and clears away what else such ones have left."""
    replaced = _left_over(target, "replaced")
    if replaced and not target.exists():
        replaced.pop().rename(target)
    for path in (*replaced, *_left_over(target, "unfinished")):
        shutil.rmtree(path, ignore_errors=True)
    for path in _left_over(target, "lock"):
        path.unlink(missing_ok=True)


def _left_over(target: Path, kind: str) -> list[Path]:
    """What processes have left behind that nobody holds any more."""
    name = re.compile(rf"\.{re.escape(target.name)}\.{kind}-([^-]+)")
    matches = [(path, name.fullmatch(path.name)) for path in sorted(target.parent.glob(".*"))]
    return [path for path, match in matches if match and not _is_held(_beside(target, "lock", match[1]))]


def _is_held(lock: Path) -> bool:
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is none, or it is not for us to judge whether it is held
        return lock.exists()
    return False
