"""How a planned run stands: to be started, in other hands, or ended in some way. Everything is read from its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm.config import RunConfig
from oelm.data.meta import Meta
from oelm.errors import UserError
from oelm.runfolder import RunFolder, redefined
from oelm.runs import attempts
from oelm.runs.matrix import Arm

STOP = ".stop"  # touched in a folder whose runs queues are to leave alone


@dataclass(frozen=True)
class Standing:
    """ready, elsewhere (another process has it), finished, failed, stopped, or unread (cannot be read)."""

    state: str
    message: str = ""
    diverged: bool = False

    @property
    def ended(self) -> bool:
        return self.state not in ("ready", "elsewhere")


def standing(config: RunConfig, outputs: Path, since: float, retries: int) -> Standing:
    """How a run stands for a queue that began at a time and starts a run again so many times."""
    folder = RunFolder(config.run_folder)
    try:
        status = folder.status() if folder.exists() else {"state": "new"}
        tries = attempts.attempts(folder, since)
    except UserError as error:
        return Standing("failed", str(error))
    if status["state"] == "finished":
        return Standing("finished")
    if status["state"] == "running" or attempts.is_claimed(folder):
        return Standing("elsewhere")
    if status.get("diverged"):
        return Standing("failed", str(status["message"]), diverged=True)
    return _judged(status, tries, retries) or (
        Standing("stopped", "stopped by oelm stop") if asked_to_stop(folder.path, outputs, since) else Standing("ready")
    )


def _judged(status: dict[str, Any], tries: Sequence[dict[str, Any]], retries: int) -> Standing | None:
    """Whether what was tried so far is enough."""
    ends = [line for line in tries if line["event"] == "end"]
    # What a queue had to stop because it was itself told to stop is another queue's to go on with.
    starts = sum(line["event"] == "start" for line in tries) - sum(bool(line.get("stopping")) for line in ends)
    if starts <= 0:
        return None
    if status["state"] == "interrupted":
        if tries[-1]["event"] == "start" and attempts.at_work(tries[-1]):
            return Standing("elsewhere")  # its queue is about to note why
        return Standing("stopped", str(status.get("message", "")))
    cause = ends[-1].get("cause", "") if ends else "the queue that started it has died"
    if starts > retries or (ends and ends[-1].get("code") == attempts.REFUSED):
        return Standing("failed", str(cause))
    return None


def asked_to_stop(path: Path, outputs: Path, since: float) -> bool:
    """Whether `oelm stop` has named a folder, or one above it, after a time."""
    for folder in (path, *path.parents):
        mark = folder / STOP
        if mark.exists() and mark.stat().st_mtime >= since:
            return True
        if folder == outputs:
            return False
    return False


def check(arms: Sequence[Arm]) -> None:
    """Refuses, before anything starts, what could not be run: a corpus that is not there, a folder of another run."""
    corpora = {arm.config.data_folder: arm.config.dataset for arm in arms}
    missing = {name: folder for folder, name in corpora.items() if not (folder / "meta.json").exists()}
    if missing:
        commands = "; ".join(f"oelm prepare {name}" for name in missing)
        where = ", ".join(map(str, missing.values()))
        raise UserError(f"{where} must be prepared first: {commands} (for your own text with --source)")
    for arm in arms:
        refuse_other_runs(arm, Meta.read(arm.config.data_folder).sha256)


def refuse_other_runs(arm: Arm, hashes: Mapping[str, str] | None = None) -> None:
    """Refuses folders of an arm's runs that hold something else; hashes: of its corpus, where that is known."""
    for config in arm.trials():
        _refuse_another_run(config, hashes)
    for config in arm.runs(arm.rates[0]):
        _refuse_another_run(config, hashes, arm.rates if len(arm.rates) > 1 else ())


def _refuse_another_run(config: RunConfig, hashes: Mapping[str, str] | None, grid: Sequence[float] = ()) -> None:
    """Refuses a plan for a folder that holds something else; a run that cannot be read is left to its process.

    grid: the rates among which the run's is the best.
    """
    folder = RunFolder(config.run_folder)
    try:
        if not folder.exists():
            return
        run, manifest = folder.config(), folder.manifest()
    except UserError:
        return
    there, here = run.identity(), config.resolved(run.vocab_size).identity()
    searched = ("max_lr", "min_lr") if grid else ()
    changed = [f"{n}: {there[n]} there, {here[n]} now" for n in here if here[n] != there[n] and n not in searched]
    if hashes is not None and manifest["data"]["sha256"] != hashes:
        changed.append("its corpus had other bytes")
    if other := redefined(config, manifest):
        changed.append(other)
    tried = manifest["learning_rate"]["grid"]
    if grid and set(tried) != set(grid):
        then, now = (", ".join(f"{rate:g}" for rate in sorted(rates)) or "no others" for rates in (tried, grid))
        changed.append(f"its learning rate was the best of {then}, not of {now}")
    if changed:
        what = "; ".join(changed)
        raise UserError(f"{folder.path} holds another run ({what}); remove it, or choose another --out-dir")
