"""What the queue costs per run: python -m benchmarks.queue

The same short runs, one after the other: by `oelm run`, and by as many `oelm train` commands. Both start from nothing
in every round; whichever went first in one round goes second in the next.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.results import write_result
from oelm.data.prepare import prepare

RUNS = 4
MATRIX = f"""variants: baseline
seeds: {RUNS}
settings: {{max_steps: 2, warmup_steps: 1, val_tokens: 2048}}
"""


def oelm(*arguments: str, cwd: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "oelm", *arguments]
    subprocess.run(command, cwd=cwd, env=environment, check=True, stdout=subprocess.DEVNULL)


def by_queue(place: Path) -> None:
    oelm("run", "m.yaml", "--slots", "1", cwd=place)


def by_hand(place: Path) -> None:
    for seed in range(RUNS):
        fields = {"max_steps": 2, "warmup_steps": 1, "val_tokens": 2048, "seed": seed, "device": "cpu"}
        oelm("train", *(part for name, value in fields.items() for part in (f"--{name}", str(value))), cwd=place)


def seconds(way: Callable[[Path], None], data: Path) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        (place / "data").symlink_to(data)
        (place / "m.yaml").write_text(MATRIX)
        started = time.perf_counter()
        way(place)
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    times: dict[str, list[float]] = {"queue": [], "hand": []}
    with tempfile.TemporaryDirectory() as scratch:
        data = prepare("storybook", data_dir=Path(scratch)).parent
        seconds(by_hand, data)  # not counted: the corpus is verified, and bytecode compiled
        for i in range(rounds):
            for way in (by_queue, by_hand) if i % 2 else (by_hand, by_queue):
                times[way.__name__.removeprefix("by_")].append(seconds(way, data))
            print({name: [round(each, 2) for each in several] for name, several in times.items()}, flush=True)
    extra = [(queue - hand) / RUNS for queue, hand in zip(times["queue"], times["hand"], strict=True)]
    result = {
        "what": f"{RUNS} runs of 2 steps (nano), one after the other, on one thread",
        "seconds": times,
        "overhead_seconds_per_run": {"median": statistics.median(extra), "rounds": extra},
    }
    print(f"the queue costs {statistics.median(extra):.2f} s per run; kept in {write_result('queue', result)}")


if __name__ == "__main__":
    main()
