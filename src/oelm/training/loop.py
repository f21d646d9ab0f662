"""fit(): the whole training loop on one page, over a Run that knows how to do each of its parts."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from oelm.config import RunConfig, run_id
from oelm.data.batches import Corpus, open_corpus
from oelm.errors import DivergedError, InterruptedRunError, RunFailedError, UserError, is_disk_full, is_lost_peer
from oelm.runfolder import RunFolder, locked
from oelm.training.clock import Clock
from oelm.training.evaluate import StopAskedError
from oelm.training.observe import Observer
from oelm.training.run import Run
from oelm.training.step import deterministic_kernels
from oelm.training.track import check_tracker
from oelm.training.world import World, joined


def fit(config: RunConfig, observer: Observer | None = None, command: list[str] | None = None) -> RunFolder:
    """Trains a run to its end, from wherever it stands, and returns its folder.

    A signal to stop saves a checkpoint and raises InterruptedRunError; a loss that is not finite raises RunFailedError.
    """
    check_tracker(config)
    with (
        deterministic_kernels(config.device) if config.deterministic else nullcontext(),
        joined(config) as world,
        opened(config, world, observer or Observer(), command or sys.argv) as run,
        stop_signals() as stop,
    ):
        if run.finished_before():
            return run.folder
        run.stop_asked = lambda: stop.asked
        run.start()
        try:
            while run.due or run.step < run.config.max_steps:
                if not run.due:
                    run.train()
                if run.at(run.config.val_interval):
                    run.validate()
                if run.at(run.config.log_interval):
                    run.log()
                run.due = False
                stopping = run.agreed()
                if stopping or run.at(run.config.save_interval):
                    run.save()
                if stopping:
                    raise run.interrupted(stop.number)
            run.finish()
        except StopAskedError:
            run.save()
            raise run.interrupted(stop.number) from None
        return run.folder


@contextmanager
def opened(config: RunConfig, world: World, observer: Observer, command: list[str]) -> Iterator[Run]:
    """The run of a config, its data checked and its folder held; however it ends, status.json says how."""
    if not world.leads:
        world.wait()  # for the first process to verify the corpus; its result is kept for the others
    clock = Clock()
    with clock.part("startup"):
        splits = dict.fromkeys(("train", "val", config.final_split))
        corpus = open_corpus(config.data_folder, config.vocab_size, config.seq_len, splits)
    if world.leads:
        world.wait()
    config = config.resolved(corpus.vocab_size)
    folder = RunFolder(config.run_folder)
    if config.goes_back and not folder.exists():
        raise UserError(
            f"--resume {config.resume}: there is no run in {folder.path} to go back in; use auto, never, or the path "
            f"of one of a run's checkpoints"
        )
    with locked(folder) if world.leads else nullcontext():
        if world.leads:
            _check_identity(config, folder, corpus)
        run = Run(config, world, folder, corpus, observer if world.leads else Observer(), command, clock=clock)
        with _status_kept(run):
            yield run


@contextmanager
def _status_kept(run: Run) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        stopped = isinstance(error, InterruptedRunError | KeyboardInterrupt)
        full, deserted = is_disk_full(error), run.world.size > 1 and is_lost_peer(error)
        message = str(error) or type(error).__name__
        if full:
            message = f"no space left on the disk that holds {run.folder.path}; free some and run the command again"
        elif deserted:
            message = "another of the processes has ended; the last checkpoint stands, and the same command goes on"
        elif isinstance(error, KeyboardInterrupt):
            message = "stopped at once; the last checkpoint stands"
        run.fail("interrupted" if stopped else "failed", message, diverged=isinstance(error, DivergedError))
        if full:
            raise UserError(message) from None
        if deserted:
            raise RunFailedError(message) from None
        raise
    finally:
        run.close()


def _check_identity(config: RunConfig, folder: RunFolder, corpus: Corpus) -> None:
    if not folder.exists():
        if theirs := folder.records():
            raise UserError(
                f"{folder.path} has a {theirs[0]}, but no manifest.json that says which run it is of; move it away, "
                f"or choose another --out_dir"
            )
        return
    if config.resume == "never":
        raise UserError(f"{folder.path} holds a run already; choose another --out_dir, or --resume auto to go on")
    if folder.manifest()["run_id"] == run_id(config, corpus.hashes):
        if "config.yaml" in folder.records():
            folder.identified()
        return
    if not folder.records():  # killed between its first file and its second
        raise UserError(f"{folder.path} holds another run, hardly begun; remove it, or choose another --out_dir")
    there, here = folder.identified()[0].identity(), config.identity()
    changed = [f"{name}: {there[name]} there, {here[name]} here" for name in here if here[name] != there[name]]
    what = "; ".join(changed) or "its corpus has other bytes"
    raise UserError(f"{folder.path} holds another run ({what}); choose another --out_dir")


class StopSignal:
    """Whether this process was asked to stop, and by which signal; another process may have been asked instead."""

    asked = False
    number: int = signal.SIGTERM

    def __call__(self, number: int, frame: object) -> None:
        self.asked, self.number = True, number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@contextmanager
def stop_signals() -> Iterator[StopSignal]:
    """Turns SIGINT and SIGTERM into a wish to stop after the step; asked twice, the process ends at once."""
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():  # a notebook's worker cannot take signals
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
