"""Runs in processes of their own, so that a measurement starts from nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from oelm.config import RunConfig
from oelm.runfolder import RunFolder

PROGRAM = """import sys
from oelm.config import RunConfig
from oelm.training.loop import fit
from oelm.training.observe import Lines
config = RunConfig(sys.argv[1], resume=sys.argv[2])
fit(config, Lines(30))"""


def train(config: RunConfig) -> RunFolder:
    """Trains a run whose out_dir is given, to its end."""
    file = Path(f"{config.run_folder}.yaml")
    file.write_text(config.to_yaml())
    subprocess.run([sys.executable, "-c", PROGRAM, str(file), config.resume], check=True)
    return RunFolder(config.run_folder)
