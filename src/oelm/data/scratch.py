"""A folder that appears under its name only when it is complete."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oelm.errors import UserError
from oelm.processes import alive


class TakenError(Exception):
    """By now there is something else under the folder's name."""


@contextmanager
def becoming(target: Path, replace: bool) -> Iterator[Path]:
    """A hidden folder that becomes `target` when its block ends well, and vanishes when it does not.

    A folder cannot take another's place in one stroke: what is to be replaced is put aside under a hidden name first.
    Whoever is killed at that point leaves no `target`; tidy() puts the old one back.
    """
    scratch = target.with_name(f".{target.name}.unfinished-{os.getpid()}")
    _make(scratch, target.parent)
    try:
        yield scratch
        for path in scratch.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        _put(scratch, target, replace)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(f"no space left on the disk while preparing {target}; free some and run it again") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _make(scratch: Path, parent: Path) -> None:
    try:
        scratch.mkdir(parents=True)
    except (FileExistsError, NotADirectoryError):
        file = next((path for path in (parent, *parent.parents) if path.is_file()), parent)
        raise UserError(f"--data-dir {parent}: {file} is a file, not a folder") from None
    except PermissionError:
        raise UserError(f"--data-dir {parent} cannot be written: permission denied") from None


def _put(scratch: Path, target: Path, replace: bool) -> None:
    aside = target.with_name(f".{target.name}.replaced-{os.getpid()}")
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


def _left_over(target: Path, kind: str) -> list[Path]:
    """Hidden folders of `target` whose process is gone."""
    name = re.compile(rf"\.{re.escape(target.name)}\.{kind}-([0-9]+)")
    matches = [(path, name.fullmatch(path.name)) for path in target.parent.glob(".*")]
    owners = [(path, int(match[1])) for path, match in matches if match]
    return [path for path, owner in owners if owner == os.getpid() or not alive(owner)]
