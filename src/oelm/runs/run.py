"""`oelm run`: from names to a queue at work, in this process or detached from it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from oelm.errors import RunFailedError, UserError
from oelm.output import UntilGone
from oelm.runs.attempts import last_words
from oelm.runs.devices import Gpus, Places, Slots, gpu_count
from oelm.runs.matrix import Arm, arms_of, overrides
from oelm.runs.queue import Queue
from oelm.runs.standing import Standing, check
from oelm.runs.waiting import FOLDER
from oelm.training.track import check_tracker

SECONDS_TO_LIVE = 3.0  # in which a queue that cannot begin has said so


def check_numbers(retries: int, minutes: float | None) -> None:
    if not 0 <= retries <= 1000:
        raise UserError(f"--retries {retries} must lie between 0 and 1,000")
    if minutes is not None and not minutes >= 0:
        raise UserError(f"--wait {minutes:g} must be 0 minutes or more")


def planned(
    names: Sequence[str], settings: Sequence[str], seeds: int | None, outputs: Path, data_dir: Path, on_cpu: bool
) -> list[Arm]:
    """What is to be run, checked."""
    arms = arms_of(names, outputs, data_dir, seeds, overrides(settings))
    wanted = {arm.config.device.partition(":")[0] for arm in arms}
    if on_cpu and "cuda" in wanted:
        raise UserError("device cuda needs GPUs: leave --slots out, or set device=cpu")
    if not on_cpu and "cpu" in wanted:
        raise UserError("device cpu goes with --slots N, and not with --gpus")
    # Written out: where PyTorch finds no GPU though one was given, a run is to fail and not to creep along on the CPU.
    device = "cpu" if on_cpu else "cuda"
    arms = [replace(arm, config=replace(arm.config, device=device)) for arm in arms]
    check(arms)
    for arm in arms:
        check_tracker(arm.config)
    return arms


def places(gpus: str | None, per_run: int, slots: int | None, outputs: Path) -> Places:
    """Where runs go: the GPUs that were named, or all there are; the CPU where there is none, or it was asked for."""
    if slots is not None:
        if gpus is not None or per_run != 1:
            raise UserError("--slots is for the CPU: drop it, or drop --gpus and --gpus-per-run")
        if not 1 <= slots <= 1024:
            raise UserError(f"--slots {slots} must lie between 1 and 1,024")
        return Slots(slots, outputs)
    if gpus is None and per_run == 1 and not gpu_count():
        return Slots(1, outputs)
    return Gpus.of_this_machine(_numbers(gpus), per_run)


def _numbers(gpus: str | None) -> tuple[int, ...] | None:
    if gpus is None:
        return None
    parts = [part.strip() for part in gpus.split(",")]
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise UserError(f"--gpus {gpus} must be numbers of GPUs, such as 2,3")
    return tuple(map(int, parts))


def work(arms: Sequence[Arm], where: Places, outputs: Path, retries: int, minutes: float | None) -> None:
    """Runs what is planned to its end, and says how each run stands then."""
    out = UntilGone(sys.stdout)

    def say(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", file=out, flush=True)

    patience = None if minutes is None else 60 * minutes
    count = f"{len(arms)} {'arm' if len(arms) == 1 else 'arms'}"
    say(f"{count} to run; oelm watch shows how they get on, Ctrl-C lets them save and ends them")
    ended = Queue(arms, where, outputs, retries, patience, say).run()
    print(_summary(ended, outputs), file=out, flush=True)
    if left := [path for path, stands in ended.items() if stands.state != "finished"]:
        raise RunFailedError(f"{len(left)} did not finish; the same command goes on with them")


def _summary(ended: Mapping[Path, Standing], outputs: Path) -> str:
    finished = sum(stands.state == "finished" for stands in ended.values())
    left = len(ended) - finished
    lines = [f"{finished} runs are finished; oelm compare --all {outputs} sets them side by side"]
    lines += [f"not finished: {left}"] if left else []
    others = {path: stands for path, stands in ended.items() if stands.state != "finished"}
    lines += [f"  {path.relative_to(outputs)}: {stands.state}: {stands.message}" for path, stands in others.items()]
    return "\n".join(lines)


def detach(arguments: Sequence[str], outputs: Path) -> None:
    """The same command in a session of its own, which outlives the login."""
    folder = outputs / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y-%m-%d-%H%M%S')}.log"
    with path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "oelm", "run", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _see_it_live(process, path)
    print(f"detached as process {process.pid}; it writes to {path}")
    print("oelm watch shows how it gets on, oelm stop all ends it")


def _see_it_live(process: subprocess.Popen[bytes], log: Path) -> None:
    """Refuses to call a queue detached that has ended at once, for a reason that only it has met."""
    try:
        code = process.wait(timeout=SECONDS_TO_LIVE)
    except subprocess.TimeoutExpired:
        return
    if code:
        why = last_words(log) or f"exit code {code}, without a word: is there room on the disk?"
        raise RunFailedError(f"the queue has ended at once: {why}")
