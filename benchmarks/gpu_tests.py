"""The tests that need a GPU, run on one, and their outcome kept: python -m benchmarks.gpu_tests

`make test` leaves them out, loudly, where there is no GPU; benchmarks/results/gpu_tests.json says where they last ran.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.results import write_result

TESTS = ("tests/fast/test_kernels.py", "tests/training/test_gpu.py")


def outcomes(report: Path) -> dict[str, str]:
    """Each test of a JUnit report and how it ended."""
    cases = ElementTree.parse(report).getroot().iter("testcase")
    return {
        f"{case.get('classname')}.{case.get('name')}": next((child.tag for child in case), "passed") for case in cases
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", f"--junit-xml={report}", *TESTS]
        if importlib.util.find_spec("xdist"):  # most of the time goes into compiling
            command += ["-p", "xdist", "-n", "6"]
        code = subprocess.run(command, env={**os.environ, "OELM_REQUIRE": "cuda"}).returncode
        ended = outcomes(report)
    passed = sum(outcome == "passed" for outcome in ended.values())
    path = write_result("gpu_tests", {"passed": passed, "of": len(ended), "tests": ended})
    print(f"{passed} of {len(ended)} passed; {path}")
    sys.exit(code)


if __name__ == "__main__":
    main()
