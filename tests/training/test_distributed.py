"""Several processes: the same losses as one with the same global batch, and only one that writes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from oelm.config import RunConfig
from oelm.runfolder import RunFolder, read_lines
from oelm.training.loop import fit
from tests.conftest import flags_of, oelm

Tiny = Callable[..., RunConfig]


def torchrun(config: RunConfig, processes: int = 2) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return subprocess.run(
        [*command, "-m", "oelm", "train", *flags_of(config)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize(("variant", "accumulation", "dropout"), [("baseline", 1, 0.1), ("oelm_v2", 2, 0.0)])
def test_two_processes_compute_what_one_does(
    tiny: Tiny, tmp_path: Path, variant: str, accumulation: int, dropout: float
) -> None:
    settings = {"model_type": variant, "accumulation": accumulation, "dropout": dropout}
    settings |= {"log_interval": 1, "max_steps": 30}
    one = fit(tiny(**settings, out_dir=str(tmp_path / "one")))
    result = torchrun(tiny(**settings, out_dir=str(tmp_path / "two")))
    assert result.returncode == 0, result.stderr
    two = RunFolder(tmp_path / "two")
    for name in ("metrics", "evals"):
        ours, theirs = ([r["loss"] for r in read_lines(getattr(run, name))] for run in (two, one))
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert result.stdout.count("parameters") == 1
    assert two.status()["state"] == "finished"
    assert two.manifest()["sessions"][0]["processes"] == 2


def test_half_of_torchruns_environment_is_named(tiny: Tiny) -> None:
    result = oelm("train", *flags_of(tiny()), RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost")
    assert result.returncode == 2
    assert "start with torchrun, or unset WORLD_SIZE" in result.stderr
    assert "Traceback" not in result.stderr


def test_two_processes_resume_together(tiny: Tiny, tmp_path: Path) -> None:
    settings = {"model_type": "oelm_v2", "log_interval": 1, "max_steps": 30}
    whole = tiny(**settings, out_dir=str(tmp_path / "whole"))
    assert torchrun(whole).returncode == 0
    cut = tiny(**settings, out_dir=str(tmp_path / "cut"))
    assert torchrun(cut).returncode == 0
    folder = RunFolder(tmp_path / "cut")
    result = torchrun(tiny(**settings, out_dir=str(tmp_path / "cut"), resume=str(folder.checkpoints / "step-20")))
    assert result.returncode == 0, result.stderr
    last = Path("checkpoints") / "step-30" / "model.safetensors"
    assert (tmp_path / "cut" / last).read_bytes() == (tmp_path / "whole" / last).read_bytes()


def test_a_batch_that_cannot_be_shared_is_refused_once(tiny: Tiny) -> None:
    result = torchrun(tiny(batch_size=9))
    assert result.returncode != 0
    assert result.stderr.count("--batch_size 9 cannot be shared by 2 processes") == 1
