"""Tokens per second of `oelm prepare` against the usual way: `datasets.map`, one document at a time.

    python -m benchmarks.prepare TEXT.txt[.xz]

Both start from the same plain text file with `<|endoftext|>` lines, use all cores, and end with a .bin of uint16 tokens
on disk. The rounds are interleaved. The usual way is what nanoGPT's prepare.py does: tokenise each document in a
`map` over worker processes, then copy the results out of the Arrow table in 1,024 contiguous shards. Whether both wrote
the same tokens is checked first. Peak memory is that of the command `oelm prepare` in a process of its own, and of a
second one over a corpus eight times the size, to show that it does not grow with the corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import write_result
from oelm.data.corpora import Reading, find_files
from oelm.data.meta import Meta
from oelm.data.tokenizer import END_OF_TEXT, gpt2_encoding

SHARDS = 1024


def documents(path: Path) -> list[str]:
    return [text for text in path.read_text().split(f"{END_OF_TEXT}\n") if text.strip()]


def tokenise(example: dict[str, Any]) -> dict[str, Any]:
    ids = gpt2_encoding().encode_ordinary(example["text"])
    ids.append(50256)
    return {"ids": ids, "len": len(ids)}


def by_map(text: Path, target: Path) -> int:
    """The usual way."""
    import datasets

    datasets.disable_progress_bars()
    datasets.disable_caching()
    rows = datasets.Dataset.from_dict({"text": documents(text)})
    tokenised = rows.map(tokenise, remove_columns=["text"], num_proc=os.cpu_count())
    total = int(np.sum(tokenised["len"], dtype=np.uint64))
    tokens = np.memmap(target, dtype=np.uint16, mode="w+", shape=(total,))
    place = 0
    shards = min(SHARDS, len(tokenised))
    for index in range(shards):
        shard = tokenised.shard(num_shards=shards, index=index, contiguous=True).with_format("numpy")
        part = np.concatenate(shard["ids"])
        tokens[place : place + len(part)] = part
        place += len(part)
    tokens.flush()
    return total


def by_oelm(text: Path, folder: Path) -> int:
    from oelm.data.prepare import prepare

    prepared = prepare("bench", [text], data_dir=folder, val_fraction=0.01, test_fraction=0.01, overwrite=True)
    return int(sum(json.loads((prepared / "meta.json").read_text())["tokens"].values()))


def peak_memory(*arguments: str) -> float:
    """Peak memory in MB of the command `oelm` with these arguments, all that it imports included."""
    program = (
        "import atexit, runpy\n"
        # Not ru_maxrss: a child inherits its parent's.
        "atexit.register(lambda: print(next(l.split()[1] for l in open('/proc/self/status') if 'VmHWM' in l)))\n"
        "runpy.run_module('oelm', run_name='__main__', alter_sys=True)\n"
    )
    result = subprocess.run([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return int(result.stdout.split()[-1]) / 1024


def peak_of_preparing(text: Path, copies: int) -> float:
    with tempfile.TemporaryDirectory() as scratch:
        texts = [Path(scratch) / f"{number}.txt" for number in range(copies)]  # one named twice would count once
        for copy in texts:
            shutil.copy(text, copy)
        peak = peak_memory("prepare", "bench", "--data-dir", f"{scratch}/data", "--source", *map(str, texts))
        total = sum(Meta.read(Path(scratch) / "data" / "bench").documents.values())
        print(f"{total:,} documents: {peak:.0f} MB", flush=True)
        return peak


def same_tokens(text: Path, scratch: Path) -> bool:
    """Whether both ways give the same tokens: our splits together have the other's, document by document."""
    by_map(text, scratch / "map.bin")
    by_oelm(text, scratch)

    def cut(tokens: np.ndarray[Any, Any]) -> list[bytes]:
        ends = np.flatnonzero(tokens == 50256) + 1
        return sorted(part.tobytes() for part in np.split(tokens, ends) if len(part))

    ours = [np.fromfile(scratch / "bench" / f"{split}.bin", dtype=np.uint16) for split in ("train", "val", "test")]
    return cut(np.concatenate(ours)) == cut(np.fromfile(scratch / "map.bin", dtype=np.uint16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a .txt or .txt.xz file with <|endoftext|> lines")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    speeds: dict[str, list[float]] = {"oelm": [], "datasets.map": []}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        text = scratch / "corpus.txt"
        text.write_text(f"{END_OF_TEXT}\n".join(Reading(find_files([options.text]))))
        if not same_tokens(text, scratch):
            sys.exit("the two ways do not give the same tokens")
        for round_number in range(1, options.rounds + 1):
            for way in speeds:
                started = time.perf_counter()
                total = by_oelm(text, scratch) if way == "oelm" else by_map(text, scratch / "map.bin")
                speeds[way].append(total / (time.perf_counter() - started))
                print(f"round {round_number}: {way:<13} {speeds[way][-1]:>12,.0f} tokens/s", flush=True)
        memory = {f"{copies} × the text": peak_of_preparing(text, copies) for copies in (1, 8)}
        size = text.stat().st_size
    ratios = [ours / theirs for ours, theirs in zip(speeds["oelm"], speeds["datasets.map"], strict=True)]
    result = {
        "text": options.text.name,
        "bytes": size,
        "tokens": total,
        "tokens_per_second": speeds,
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "peak_memory_mb": memory,
    }
    path = write_result("prepare", result)
    print(f"ratio: median {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")
    print(f"peak memory in MB: {memory}\n{path}")


if __name__ == "__main__":
    main()
