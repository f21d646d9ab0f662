"""What a training run on the CPU loses to an `oelm watch` beside it.

    python -m benchmarks.watcher

One run trains on one thread, so that there is a core for whoever watches, beside the folders of twenty finished ones.
Again and again a real `oelm watch` is started on a terminal and ended; the step times of a window with it are held
against those of the window without it just before, so that what else the machine does in those minutes falls on both.
"""

from __future__ import annotations

import argparse
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.folders import make_runs
from benchmarks.results import write_result
from oelm.data.prepare import prepare
from oelm.runfolder import RunFolder, read_lines

SETTLING = 2.0  # seconds in which a watcher starts
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}


@contextmanager
def training(data: Path, out_dir: Path) -> Iterator[RunFolder]:
    """A run that goes on for as long as it is watched."""
    flags = ["--max_steps", "1000000", "--log_interval", "5", "--val_interval", "1000000", "--out_dir", str(out_dir)]
    command = [sys.executable, "-m", "oelm", "train", *flags, "--save_interval", "1000000", "--data_path", str(data)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    folder = RunFolder(out_dir)
    try:
        while folder.last_metrics() is None:
            if process.poll() is not None:
                sys.exit("the run that was to be watched has ended")
            time.sleep(0.1)
        yield folder
    finally:
        process.kill()
        process.wait()


@contextmanager
def watching(place: Path) -> Iterator[psutil.Process]:
    """`oelm watch` on a terminal whose other end is read, as a real one's is."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (50, 160))
    command = [sys.executable, "-m", "oelm", "watch", str(place)]
    watcher = subprocess.Popen(command, env=ENVIRONMENT, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL)
    os.close(slave)

    def read() -> None:
        with suppress(OSError):  # the end of the terminal
            while os.read(master, 65536):
                pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield psutil.Process(watcher.pid)
        if watcher.poll() is not None:
            sys.exit("oelm watch has ended by itself")
    finally:
        watcher.terminate()
        watcher.wait()
        reader.join()
        os.close(master)


def step_time(folder: RunFolder, seconds: float) -> float:
    """The median step time of a window that begins now."""
    before = folder.metrics.read_bytes().count(b"\n")
    time.sleep(seconds)
    return float(statistics.median(line["step_time"] for line in read_lines(folder.metrics)[before:]))


def busy(process: psutil.Process) -> float:
    """Seconds that a process has kept a core busy."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a window")
    options = parser.parse_args()
    alone, watched, shares = [], [], []
    with tempfile.TemporaryDirectory() as name:
        outputs = Path(name)
        make_runs(outputs / "finished", ("baseline", "oelm_v2", "oelm_random", "oelm_matched"), 5, 1000)
        with training(prepare("storybook", data_dir=outputs / "data"), outputs / "run") as folder:
            for number in range(1, options.rounds + 1):
                time.sleep(SETTLING)
                alone.append(step_time(folder, options.seconds))
                with watching(outputs) as watcher:
                    time.sleep(SETTLING)
                    before = busy(watcher)
                    watched.append(step_time(folder, options.seconds))
                    shares.append((busy(watcher) - before) / options.seconds)
                print(f"round {number}: {1000 * alone[-1]:.3f} ms, watched {1000 * watched[-1]:.3f} ms", flush=True)
    ratios = [beside / by_itself for beside, by_itself in zip(watched, alone, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    result = {
        "rounds": options.rounds,
        "window_seconds": options.seconds,
        "runs_watched": 21,
        "median_step_ms": {"alone": 1000 * statistics.median(alone), "watched": 1000 * statistics.median(watched)},
        "watcher_share_of_a_core": statistics.median(shares),
        "ratio": {"median": middle, "quartiles": [low, high]},
    }
    path = write_result("watcher", result)
    print(f"the watcher keeps {statistics.median(shares):.1%} of a core busy")
    print(f"watched / alone: median {middle:.4f}, quartiles {low:.4f} and {high:.4f}\n{path}")


if __name__ == "__main__":
    main()
