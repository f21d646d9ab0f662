"""GPT-01's length from the command to its end: python -m benchmarks.end_to_end DATA

100,000 steps of medium-512 at 8 × 512 (baseline, learning rate 3e-4, recipe fair: bf16, no dropout), a validation every
1,000 steps, a checkpoint every 5,000, start-up, compiling and the final score included. The text is whatever DATA
holds: a step's time does not depend on it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.results import write_result
from benchmarks.runs import train
from oelm.config import RunConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder that `oelm prepare` made of text in GPT-2's tokens")
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        config = RunConfig(
            preset="medium-512",
            batch_size=8,
            max_lr=3e-4,
            max_steps=options.steps,
            val_interval=1000,
            save_interval=5000,
            log_interval=100,
            data_path=str(options.data),
            out_dir=f"{scratch}/run",
            device="cuda",
        )
        started = time.time()
        folder = train(config)
        wall = time.time() - started
        timing = json.loads((folder.path / "timing_stats.json").read_text())
        parts, session = timing["seconds_by_part"], folder.manifest()["sessions"][0]
    aside = (parts["validation"] + parts["saving"]) / wall
    content = {
        "shape": f"medium-512, 8 × 512, {session['precision']}, engine {session['engine']}",
        "data": options.data.name,
        "steps": options.steps,
        "wall_seconds": wall,
        "validation_and_saving_share": aside,
        "timing_stats": timing,
    }
    path = write_result("end_to_end", content)
    print(f"{wall:.1f} s in all, {aside:.1%} of it validation and saving; {path}")


if __name__ == "__main__":
    main()
