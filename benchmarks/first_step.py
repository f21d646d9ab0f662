"""How long a person waits for the first step: python -m benchmarks.first_step DATA

From the start of the command to the loss of step 1, for medium-512 at 8 × 512 on a GPU: with empty compile caches
(cold), and with those that the cold start left behind (warm). Each start is a process of its own. One start before all
others is not counted: it lets Python compile the bytecode of what it imports, as it does once per installation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results import write_result
from oelm.config import RunConfig

PROGRAM = """import os, sys, time
from oelm.config import RunConfig
from oelm.training.loop import fit
from oelm.training.observe import Observer, Progress

class First(Observer):
    def progress(self, progress: Progress) -> None:
        print(time.time(), flush=True)
        os._exit(0)

fit(RunConfig(sys.argv[1]), First())
"""


def seconds_to_first_step(data: Path, caches: Path) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        config = RunConfig(
            preset="medium-512",
            batch_size=8,
            data_path=str(data),
            out_dir=f"{scratch}/run",
            log_interval=1,
            device="cuda",
        )
        file = Path(scratch) / "run.yaml"
        file.write_text(config.to_yaml())
        places = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton")}
        started = time.time()
        result = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(file)],
            env={**os.environ, **places},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return float(result.stdout.split()[-1]) - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder that `oelm prepare` made of text in GPT-2's tokens")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"uncounted": [], "cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as scratch:
        seconds["uncounted"].append(seconds_to_first_step(options.data, Path(scratch) / "before"))
        for number in range(options.rounds):
            for kind in ("cold", "warm"):
                seconds[kind].append(seconds_to_first_step(options.data, Path(scratch) / str(number)))
            print(f"cold {seconds['cold'][-1]:.1f} s, warm {seconds['warm'][-1]:.1f} s", flush=True)
    medians = {kind: statistics.median(seconds[kind]) for kind in ("cold", "warm")}
    content = {"shape": "medium-512, 8 × 512, bf16", "data": options.data.name, "median_seconds": medians}
    print(f"{medians}; {write_result('first_step', {**content, 'seconds': seconds})}")


if __name__ == "__main__":
    main()
