"""How long `oelm status` takes over 200 run folders with 100,000 lines of metrics each.

    python -m benchmarks.status

Wall time of the command in a process of its own, its start included, on two cores, and
with the files in the page cache, as they are while runs write them. The folders take about 5 GB while it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.folders import make_runs
from benchmarks.results import write_result

VARIANTS = ("baseline", "oelm_v2", "oelm_random", "oelm_matched", "oelm_shuffle")


def seconds(folder: Path, *flags: str) -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "oelm", "status", str(folder), *flags]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    taken = time.perf_counter() - started
    if flags and any(run["state"] != "finished" for run in json.loads(result.stdout)):
        sys.exit("some of the folders are not read as finished runs")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    with tempfile.TemporaryDirectory() as name:
        folders = make_runs(Path(name), VARIANTS, options.runs // len(VARIANTS), options.lines)
        seconds(Path(name), "--json")
        taken = [seconds(Path(name)) for _ in range(options.rounds)]
    result = {
        "folders": len(folders),
        "metric_lines_each": options.lines,
        "cores": len(os.sched_getaffinity(0)),
        "seconds": {"median": statistics.median(taken), "min": min(taken), "max": max(taken)},
        "rounds": options.rounds,
    }
    path = write_result("status", result)
    print(f"{len(folders)} folders: median {statistics.median(taken):.2f} s, at most {max(taken):.2f} s\n{path}")


if __name__ == "__main__":
    main()
