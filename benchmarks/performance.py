"""All that docs/performance.md is to be made of, measured: python -m benchmarks.performance DATA --nanogpt CHECKOUT

Each point is one `oelm bench`, in a process of its own so that nothing is left over from the one before, and has a
result file of its own under benchmarks/results/performance. Points that are there already are not measured again, but
for those that were measured with other options. One that cannot be measured is named, and the others are.

    freezing   8 × 512 and 64 × 512: our baseline beside the variants that save something, and nobody else
    main       the same sizes: our baseline beside the peers
    alone      the same, each peer in a process of its own, where nothing of ours can slow it down
    corrected  widths 512 … 1536 with RoPE: oelm_v3 and oelm_slices beside the baselines that are fair to them
    engines    the same model by the engines graph, compile and eager
    batches    step time against batch size, for ours and the peers; 8 and 64 are those of main
    lengths    sequence lengths 256 … 4096 at 16,384 tokens a step: baseline, frozen and projection-free
    widths     widths 256 … 1536: the same variants
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS
from oelm.bench.bench import public
from oelm.bench.options import Bench

FOLDER = RESULTS / "performance"
PROGRAM = """from oelm.bench.bench import bench
from oelm.bench.options import Bench
bench({}, say=print)"""


def points(peers: Bench) -> dict[str, dict[str, Bench]]:
    """What is measured, by part and name."""
    main = replace(peers, variants=("baseline",), rounds=8)
    ours = replace(peers, nanogpt=None, huggingface=False)
    freezing = replace(ours, variants=("baseline", "oelm_v2", "identity_q", "oelm_shuffle"))
    engines = replace(ours, variants=("baseline",), engines=("graph", "compile", "eager"))
    repaired = ("baseline_shift", "oelm_v3", "oelm_v3_lite", "baseline_vectors", "oelm_slices", "baseline")
    corrected = replace(ours, variants=repaired, positions="rope")
    sizes = {f"{batch}x512": batch for batch in (8, 64)}
    return {
        "freezing": {size: replace(freezing, batch_size=batch, rounds=12) for size, batch in sizes.items()},
        "main": {size: replace(main, batch_size=batch) for size, batch in sizes.items()},
        "alone": {
            f"{size}-{name}": replace(peer, batch_size=batch)
            for size, batch in sizes.items()
            for name, peer in each_alone(main).items()
        },
        "corrected": {str(width): replace(corrected, d_model=width, rounds=12) for width in (512, 768, 1024, 1536)},
        "engines": {size: replace(engines, batch_size=batch) for size, batch in sizes.items()},
        "batches": {f"{batch}x512": replace(main, batch_size=batch) for batch in (1, 2, 4, 16, 32)},
        "lengths": {
            str(length): replace(freezing, batch_size=16_384 // length, seq_len=length)
            for length in (256, 512, 1024, 2048, 4096)
        },
        "widths": {str(width): replace(freezing, d_model=width) for width in (256, 512, 768, 1024, 1536)},
    }


def each_alone(peers: Bench) -> dict[str, Bench]:
    """The peers that there are, one at a time and without us."""
    alone = {}
    if peers.nanogpt:
        alone["nanogpt"] = replace(peers, variants=(), huggingface=False)
    if peers.huggingface:
        alone["huggingface"] = replace(peers, variants=(), nanogpt=None)
    return alone


def is_measured(path: Path, point: Bench) -> bool:
    """Whether there is a result of just this; where its text and its checkout lay does not matter."""

    def asked(options: dict[str, Any]) -> dict[str, Any]:
        return {**options, "data_path": None, "nanogpt": options["nanogpt"] is not None}

    return path.exists() and asked(json.loads(path.read_text())["options"]) == asked(
        json.loads(json.dumps(public(point)))
    )


def main() -> None:
    parts = list(points(Bench()))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a folder that `oelm prepare` made of text in GPT-2's tokens")
    parser.add_argument("--nanogpt", help="a checkout of nanoGPT")
    parser.add_argument("--parts", nargs="+", default=parts, choices=parts)
    parser.add_argument("--no-huggingface", action="store_true", help="leave its Trainer out")
    options = parser.parse_args()
    peers = Bench(data_path=options.data, nanogpt=options.nanogpt, huggingface=not options.no_huggingface)
    failed = []
    for part in options.parts:
        for name, point in points(peers)[part].items():
            path = FOLDER / f"{part}-{name}.json"
            if not is_measured(path, point):
                print(f"{part} {name}", flush=True)
                program = PROGRAM.format(replace(point, out=str(path)))
                if subprocess.run([sys.executable, "-c", program]).returncode:
                    failed.append(f"{part} {name}")
    if failed:
        sys.exit(f"could not be measured, for the reasons above: {', '.join(failed)}")


if __name__ == "__main__":
    main()
