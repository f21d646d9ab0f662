"""Where the measurements of this repository are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oelm.bench import record

RESULTS = Path(__file__).parent / "results"


def write_result(name: str, content: dict[str, Any]) -> Path:
    """Writes benchmarks/results/NAME.json."""
    return record.write_result(RESULTS / f"{name}.json", content)
