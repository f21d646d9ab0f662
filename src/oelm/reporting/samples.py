"""What the runs wrote at their end, side by side."""

from __future__ import annotations

import re
from pathlib import Path

from oelm.analysis.compare import Comparison
from oelm.reporting.blocks import Block, Paragraph, Text, Texts
from oelm.runfolder import RunFolder
from oelm.wording import Said

LONGEST = 1000  # characters


def samples(comparison: Comparison) -> tuple[Block, ...]:
    """A text of each variant, of a seed that all of them have if there is one."""
    shared = set.intersection(*(set(row.seeds) for row in comparison.rows))
    texts = []
    for row in comparison.rows:
        seed = min(shared or row.seeds)
        result = next(result for result in row.results if result.config.seed == seed)
        if text := _last_sample(result.folder):
            texts.append(Text(Said("{title}, seed {seed}", title=row.title, seed=seed), text))
    return (Texts(tuple(texts)),) if texts else (Paragraph((Said("None of the runs has written a sample."),)),)


def _last_sample(folder: RunFolder) -> str:
    """The text of the last step; links and other things that are no plain files are not followed."""
    steps = {path: _step(path) for path in (folder.path / "samples").glob("step-*.txt")}
    for path in sorted((path for path, step in steps.items() if step >= 0), key=lambda p: steps[p], reverse=True):
        if path.is_file() and not path.is_symlink():
            with path.open(encoding="utf-8", errors="replace") as file:
                text = file.read(LONGEST + 1)
            return text[:LONGEST].strip() + ("…" if len(text) > LONGEST else "")
    return ""


def _step(path: Path) -> int:
    match = re.fullmatch(r"step-(\d{1,12})", path.stem)
    return int(match[1]) if match else -1
