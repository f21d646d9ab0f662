"""How long `oelm report` takes over many long runs, and how much memory: 7 variants × 3 seeds, 100,000 lines each.

python -m benchmarks.report
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.folders import make_runs
from benchmarks.results import write_result
from oelm.variants import NAMED

VARIANTS, SEEDS, METRIC_LINES = tuple(NAMED)[:7], 3, 100_000


def measure(*arguments: str) -> tuple[float, int]:
    """Seconds and peak bytes of `oelm` as a process of its own."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "oelm", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, arguments)
    return time.perf_counter() - started, usage.ru_maxrss * 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "outputs"
        runs = make_runs(root, VARIANTS, SEEDS, METRIC_LINES)
        seconds, peak = measure("report", str(root))
        sizes = {path.suffix.removeprefix("."): path.stat().st_size for path in (root / "report").glob("report.*")}
    result: dict[str, Any] = {
        "runs": len(runs),
        "metric_lines_each": METRIC_LINES,
        "seconds": round(seconds, 2),
        "peak_memory_mb": round(peak / 1e6),
        "bytes": sizes,
    }
    print(result)
    print(f"kept in {write_result('report', result)}")


if __name__ == "__main__":
    main()
