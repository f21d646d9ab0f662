"""Runs waiting for free places: each is a process of its own, which goes on when the queue is gone.

The queue remembers nothing: what is done, tried or in other hands is read from the run folders. So it can be killed and
started again, and several can share the work on one folder.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from oelm.config import RunConfig
from oelm.errors import InterruptedRunError, UserError
from oelm.runfolder import RunFolder, write_whole
from oelm.runs import attempts
from oelm.runs.devices import Place, Places
from oelm.runs.matrix import Arm
from oelm.runs.standing import Standing, standing
from oelm.runs.waiting import Notice, Waiting
from oelm.training.tuning import choice
from oelm.wording import formatted, shown

GLANCE_SECONDS = 0.05  # between two looks at our own processes
LOOK_SECONDS = 1.0  # between two looks at folders and devices
NOTICE_SECONDS = 5.0
SAY_AGAIN_SECONDS = 600.0


@dataclass(frozen=True)
class Child:
    """A run's process that this queue has started."""

    config: RunConfig
    place: Place
    process: subprocess.Popen[bytes]


@dataclass
class Queue:
    """Runs the arms of experiments on places; `run` returns when nothing is left to do."""

    arms: Sequence[Arm]
    places: Places
    outputs: Path
    retries: int = 1
    patience: float | None = None  # seconds to wait for a place while none of ours runs; None: as long as needed
    say: Callable[[str], None] = print

    began: float = field(default_factory=time.time)
    _children: dict[Path, Child] = field(default_factory=dict)
    _ended: dict[Path, Standing] = field(default_factory=dict)
    _rates: dict[Path, float] = field(default_factory=dict)
    _waiting_since: float | None = None
    _occupied_by: str = ""
    _said_so: float | None = None  # when it was said what is being waited for
    _asked: list[int] = field(default_factory=list)  # signals to stop
    _passed_on: int = 0  # how many of them the runs have been told of

    def run(self) -> dict[Path, Standing]:
        """Starts what is ready as places come free, and returns how each run stands in the end."""
        notice = Notice(self.outputs)
        try:
            with self._heeding_signals():
                self._work(notice)
        finally:
            notice.remove()
        if self._asked:
            name = signal.Signals(self._asked[-1]).name
            message = f"stopped by {name}; what was begun is saved, and the same command goes on"
            raise InterruptedRunError(message, self._asked[-1])
        return dict(self._ended)

    def _work(self, notice: Notice) -> None:
        looked = noticed = -1e9
        while True:
            ended = self._reap()
            if self._asked:
                self._pass_on()
                if not self._children:
                    return
            elif ended or time.monotonic() - looked >= LOOK_SECONDS:
                todo = self._todo()
                ready = [config for config, stands in todo if stands.state == "ready"]
                started = self._start(ready)
                looked = time.monotonic()
                if started or looked - noticed >= NOTICE_SECONDS:
                    self._notify(notice, [config for config in ready if config.run_folder not in self._children])
                    noticed = looked
                if not todo and not self._children:
                    return
                if self._out_of_patience(ready):
                    self._give_up(ready)
                    return
            time.sleep(GLANCE_SECONDS)

    def _todo(self) -> list[tuple[RunConfig, Standing]]:
        """The runs that have not ended and are not our own children, in the order in which they are wanted."""
        todo = []
        for arm in self.arms:
            trials = self._unended(arm.trials())
            todo += trials
            if not trials and (rate := self._rate(arm)) is not None:
                todo += self._unended(arm.runs(rate))
        return [(config, stands) for config, stands in todo if config.run_folder not in self._children]

    def _unended(self, configs: Sequence[RunConfig]) -> list[tuple[RunConfig, Standing]]:
        """Those of some runs that have not ended; those that have since the last look are noted."""
        left = []
        for config in configs:
            path = config.run_folder
            if path in self._ended:
                continue
            stands = self._look(config)
            if stands.ended:
                self._end(path, stands)
            else:
                left.append((config, stands))
        return left

    def _look(self, config: RunConfig) -> Standing:
        if config.run_folder in self._children:
            return Standing("elsewhere")
        return standing(config, self.outputs, self.began, self.retries)

    def _rate(self, arm: Arm) -> float | None:
        """The learning rate of an arm whose trials have ended; None where they cannot tell."""
        if arm.folder not in self._rates and arm.folder not in self._ended:
            try:
                self._rates[arm.folder] = self._best_rate(arm)
            except UserError as error:
                stopped = any(self._ended[trial.run_folder].state == "stopped" for trial in arm.trials())
                self._end(arm.folder, Standing("stopped" if stopped else "failed", str(error)))
        return self._rates.get(arm.folder)

    def _best_rate(self, arm: Arm) -> float:
        """What the trials of an arm have shown; all must have, or the rates would have had unequal chances."""
        trials = arm.trials()
        if not trials:
            return arm.rates[0]
        for trial in trials:
            stands = self._ended[trial.run_folder]
            if stands.state != "finished" and not stands.diverged:
                raise UserError(f"no learning rate: {self._name(trial.run_folder)} {stands.state}")
        best = choice([RunFolder(trial.run_folder) for trial in trials]).best
        self.say(f"{self._name(arm.folder)}: the best learning rate is {best:g}")
        return best

    def _start(self, ready: Sequence[RunConfig]) -> int:
        started = 0
        for config in ready:
            place = self.places.take()
            if place is None:
                self._wait_for(self.places.occupied_by())
                return started
            if self._launched(config, place):
                started += 1
                self._waiting_since = None
            else:
                place.let_go()
        return started

    def _wait_for(self, occupied_by: str) -> None:
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if not self._children and (self._said_so is None or now - self._said_so > SAY_AGAIN_SECONDS):
            self.say(f"waiting for {occupied_by}")
            self._said_so = now
        self._occupied_by = occupied_by

    def _launched(self, config: RunConfig, place: Place) -> bool:
        """Starts a run's process, unless another queue has been quicker, or its folder cannot be written."""
        try:
            process = self._launch(RunFolder(config.run_folder), config, place)
        except OSError as error:
            self._end(config.run_folder, Standing("failed", f"cannot be started: {error}"))
            return False
        if process is None:
            return False
        place.let_go()
        self._children[config.run_folder] = Child(config, place, process)
        self.say(f"{self._name(config.run_folder)}: started on {place.name}{self._after_waiting()}")
        return True

    def _launch(self, folder: RunFolder, config: RunConfig, place: Place) -> subprocess.Popen[bytes] | None:
        held = attempts.claim(folder)
        if held is None:
            return None
        try:
            if folder.exists() and folder.status()["state"] == "finished":
                return None
            write_whole(folder.path / attempts.PLAN, config.to_yaml())
            attempts.began(folder, place.name)
            with (folder.path / attempts.CONSOLE).open("ab") as console:
                return subprocess.Popen(
                    command(folder.path / attempts.PLAN, place.processes),
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **place.environment, **same_threads(folder)},
                    pass_fds=(held, *place.locks),
                    start_new_session=True,  # so that Ctrl-C reaches the queue alone, which lets runs save first
                )
        finally:
            os.close(held)

    def _after_waiting(self) -> str:
        if self._waiting_since is None or time.monotonic() - self._waiting_since < LOOK_SECONDS:
            return ""
        return f", after waiting {formatted(time.monotonic() - self._waiting_since)} for {self._occupied_by}"

    def _reap(self) -> bool:
        """Takes note of those of our processes that have ended."""
        ended = [path for path, child in self._children.items() if child.process.poll() is not None]
        for path in ended:
            child = self._children.pop(path)
            code = child.process.returncode
            why = "" if code == 0 else attempts.cause(RunFolder(path), code)
            with suppress(OSError):  # a full disk; the run's own status says what it can
                attempts.ended(RunFolder(path), code, why, stopping=bool(self._asked))
            if why and not self._asked:
                self.say(f"{self._name(path)}: ended with {why}")
        return bool(ended)

    def _end(self, path: Path, stands: Standing) -> None:
        self._ended[path] = stands
        said = stands.message
        with suppress(UserError):  # of a damaged file, whoever reads it next will hear
            if stands.state == "finished" and (final := RunFolder(path).final_eval()):
                said = f"PPL {shown(final['ppl'], 3)}"
        self.say(f"{self._name(path)}: {stands.state}" + (f": {said}" if said else ""))

    def _notify(self, notice: Notice, waiting: Sequence[RunConfig]) -> None:
        listed = [
            Waiting(str(each.run_folder.absolute()), each.model_type, each.seed, each.max_steps, self._occupied_by)
            for each in waiting
        ]
        with suppress(OSError):  # nobody has to know
            notice.write(listed)

    def _out_of_patience(self, ready: Sequence[RunConfig]) -> bool:
        if self.patience is None or self._waiting_since is None or self._children or not ready:
            return False
        return time.monotonic() - self._waiting_since > self.patience

    def _give_up(self, ready: Sequence[RunConfig]) -> None:
        for config in ready:
            self._end(config.run_folder, Standing("stopped", f"no place came free in time: {self._occupied_by}"))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.outputs))

    def _pass_on(self) -> None:
        """Tells the runs each signal to stop: at the first they save, at the second they end at once."""
        while self._passed_on < len(self._asked):
            for child in self._children.values():
                ask_to_stop(child)
            if self._children and not self._passed_on:
                self.say(f"stopping: {len(self._children)} runs save first; asked again, they end at once")
            self._passed_on += 1

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, lambda got, _: self._asked.append(got)) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def command(plan: Path, processes: int) -> list[str]:
    """What trains a run, in one process or in several."""
    train = ["-m", "oelm", "train", "--config", str(plan)]
    if processes == 1:
        return [sys.executable, *train]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return [sys.executable, *torchrun, *train]


def same_threads(folder: RunFolder) -> dict[str, str]:
    """As many threads as a run began with: with others it would not end with the same bytes."""
    try:
        sessions = folder.manifest()["sessions"] if folder.exists() else []
    except UserError:  # which its process will say
        return {}
    on_cpu = sessions and folder.config().device == "cpu"
    return {"OMP_NUM_THREADS": str(sessions[0]["cpu_threads"])} if on_cpu else {}


def ask_to_stop(child: Child) -> None:
    """Sends SIGTERM to the process that can save: of several, the first, which the others follow."""
    process = child.process.pid
    with suppress(UserError):
        status = RunFolder(child.config.run_folder).status()
        if status["state"] == "running" and status["host"] == socket.gethostname():
            process = status["pid"]
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
