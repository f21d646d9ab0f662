"""What --deterministic costs on a GPU, and that it keeps its promise: the same bytes after a resume.

    python -m benchmarks.deterministic DATA_FOLDER

Trains medium-512 (batch 8 × 512, bf16) with and without the flag, in interleaved rounds of processes of
their own, and compares the median step times; then takes a finished deterministic run back to its middle, lets it run
on, and compares the final checkpoints byte by byte.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path

from benchmarks.results import write_result
from benchmarks.runs import train
from oelm.config import RunConfig
from oelm.runfolder import RunFolder


def train_for(data: Path, out: Path, steps: int, deterministic: bool, resume: str = "auto") -> RunFolder:
    config = RunConfig(
        preset="medium-512",
        model_type="oelm_v2",
        batch_size=8,
        max_steps=steps,
        data_path=str(data),
        out_dir=str(out),
        deterministic=deterministic,
        device="cuda",
        save_interval=steps // 2,
        val_interval=steps,
        val_tokens=4096,
        log_interval=50,
        resume=resume,
    )
    return train(config)


def median_step(folder: RunFolder) -> float:
    return float(json.loads((folder.path / "timing_stats.json").read_text())["median_step_time"])


def weights(folder: RunFolder, steps: int) -> bytes:
    return (folder.checkpoints / f"step-{steps}" / "model.safetensors").read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder that `oelm prepare` made")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    times: dict[str, list[float]] = {"plain": [], "deterministic": []}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(options.rounds):
            for name in times:
                out = Path(scratch) / f"{name}-{number}"
                folder = train_for(options.data, out, options.steps, deterministic=name == "deterministic")
                times[name].append(median_step(folder))
                print(f"round {number + 1}: {name:<14} {1000 * times[name][-1]:.3f} ms per step", flush=True)
        uninterrupted = weights(folder, options.steps)
        middle = folder.checkpoints / f"step-{options.steps // 2}"
        train_for(options.data, folder.path, options.steps, deterministic=True, resume=str(middle))
        exact = weights(folder, options.steps) == uninterrupted
        session, resumed = folder.manifest()["sessions"]
        assert resumed["first_step"] == options.steps // 2
        shutil.rmtree(folder.path)
    ratio = statistics.median(times["deterministic"]) / statistics.median(times["plain"])
    content = {
        "device": session["device"],
        "shape": f"medium-512, 8 × 512, bf16, {session['engine']}",
        "data": options.data.name,
        "steps": options.steps,
        "median_step_seconds": times,
        "cost_ratio": ratio,
        "resume_same_bytes": exact,
    }
    path = write_result("deterministic", content)
    print(f"deterministic costs {ratio:.3f} × the time; resumed to the same bytes: {exact}; {path}")


if __name__ == "__main__":
    main()
