"""Golden losses: the first 20 losses of each variant at nano, kept in a file, hold the code to what it computed.

When a change is meant to move them: python -m tests.training.test_golden writes the file anew.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from pathlib import Path

import pytest

from oelm import variants
from oelm.config import RunConfig
from oelm.data.prepare import prepare
from oelm.runfolder import read_lines
from oelm.training.loop import fit

GOLDEN = Path(__file__).with_name("golden_losses.json")
STEPS = 20


def first_losses(name: str, storybook: Path, out_dir: Path) -> list[float]:
    config = RunConfig(
        preset="nano",
        model_type=name,
        data_path=str(storybook),
        out_dir=str(out_dir / name),
        max_steps=STEPS,
        max_lr=6e-3,
        warmup_steps=5,
        log_interval=1,
        val_tokens=1024,
        device="cpu",
    )
    return [record["loss"] for record in read_lines(fit(config).metrics)]


@pytest.mark.parametrize("name", variants.NAMED)
def test_losses_are_the_golden_ones(name: str, storybook: Path, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())[name]
    assert len(golden) == STEPS
    assert first_losses(name, storybook, tmp_path) == pytest.approx(golden, rel=1e-4)


def test_the_golden_losses_tell_the_variants_apart() -> None:
    golden = json.loads(GOLDEN.read_text())
    assert golden.keys() == variants.NAMED.keys()
    for one, other in itertools.combinations(golden.values(), 2):
        assert max(abs(a - b) / a for a, b in zip(one, other, strict=True)) > 2e-4


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        book = prepare("storybook", data_dir=scratch)
        content = {name: first_losses(name, book, Path(scratch)) for name in variants.NAMED}
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n")
    sys.stdout.write(f"wrote {GOLDEN}\n")
