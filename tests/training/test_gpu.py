"""On a GPU: engines that agree, exact resume under --deterministic, mixed precision that learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.runs import train
from oelm.config import RunConfig
from oelm.runfolder import RunFolder, read_lines
from oelm.training import audit
from oelm.training.loop import fit
from tests.conftest import needs

Tiny = Callable[..., RunConfig]


@pytest.fixture(autouse=True)
def _gpu() -> None:
    needs("cuda")


def losses(folder: RunFolder) -> list[float]:
    return [record["loss"] for record in read_lines(folder.metrics)]


def gpu(tiny: Tiny, **changes: Any) -> RunConfig:
    fields = {"device": "cuda", "d_model": 64, "num_heads": 2, "log_interval": 1, "max_steps": 40}
    return tiny(**{**fields, **changes})


CORRECTED = "q=headwise+lowrank(16)+residual(8)+gain,k=headwise+heads(50%)+shift(2)+lowrank(16)+temperature"


@pytest.mark.parametrize("name", ["baseline", "oelm_v2", "thin_keys", CORRECTED])
@pytest.mark.parametrize(("use_amp", "tolerance"), [(True, 5e-3), (False, 1e-5)])
def test_engines_agree_over_200_steps(tiny: Tiny, tmp_path: Path, name: str, use_amp: bool, tolerance: float) -> None:
    """At a calm learning rate: where the loss falls fast, bf16's rounding alone moves a single loss by per cents."""
    calm = {"model_type": name, "use_amp": use_amp, "max_lr": 3e-4, "max_steps": 200}
    arms = [("eager", 1), ("compile", 1), ("graph", 1), ("graph", 4)]
    runs = [
        fit(gpu(tiny, **calm, engine=engine, accumulation=parts, out_dir=str(tmp_path / f"{engine}-{parts}")))
        for engine, parts in arms
    ]
    for (engine, _), run in zip(arms, runs, strict=True):
        assert losses(run) == pytest.approx(losses(runs[0]), rel=tolerance)
        session = run.manifest()["sessions"][0]
        assert (session["engine"], session["precision"]) == (engine, "bfloat16" if use_amp else "float32")
        assert run.scores()[-1]["loss"] == pytest.approx(runs[0].scores()[-1]["loss"], rel=tolerance)


def test_a_graph_is_what_a_gpu_runs_by_default(tiny: Tiny) -> None:
    assert fit(gpu(tiny, max_steps=5)).manifest()["sessions"][0]["engine"] == "graph"


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_run_may_change_its_engine_between_its_halves(tiny: Tiny, tmp_path: Path, dropout: float) -> None:
    fields = {"use_amp": False, "model_type": "oelm_v2", "dropout": dropout, "max_lr": 3e-4}
    whole = fit(gpu(tiny, **fields, engine="eager", out_dir=str(tmp_path / "whole")))
    for first, second in (("graph", "eager"), ("eager", "graph"), ("compile", "graph")):
        path = tmp_path / f"{first}-{second}"
        cut = fit(gpu(tiny, **fields, engine=first, out_dir=str(path)))
        middle = str(cut.checkpoints / "step-30")
        fit(gpu(tiny, **fields, engine=second, out_dir=str(path), resume=middle))
        assert losses(cut) == pytest.approx(losses(whole), rel=1e-5)
        assert [session["engine"] for session in cut.manifest()["sessions"]] == [first, second]
        assert all(finding.intact for finding in audit.findings(cut))


@pytest.mark.parametrize(
    "variant",
    [
        "q=normal+freeze(10),k=headwise+thaw(25)",
        "q=normal+every(3),k=normal+every(2)",
        "q=normal+freeze(10-20)+rate(0.5),k=headwise+lowrank(16)+shift+core+rate(2)",
    ],
)
def test_what_trains_may_change_under_a_graph(tiny: Tiny, tmp_path: Path, variant: str) -> None:
    """As the eager engine has it; taken back over a change as well. Steps of a new kind come up between two logs."""
    fields = {"use_amp": False, "model_type": variant, "max_lr": 3e-4, "log_interval": 8}
    eager = fit(gpu(tiny, **fields, engine="eager", out_dir=str(tmp_path / "eager")))
    graph = fit(gpu(tiny, **fields, engine="graph", out_dir=str(tmp_path / "graph")))
    assert losses(graph) == pytest.approx(losses(eager), rel=1e-5)
    fit(gpu(tiny, **fields, engine="graph", out_dir=str(graph.path), resume=str(graph.checkpoints / "step-30")))
    assert losses(graph) == pytest.approx(losses(eager), rel=1e-5)
    for ours, theirs in zip(*(final_moments(run) for run in (graph, eager)), strict=True):
        assert ours[0] == theirs[0]
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-2, atol=1e-6)
    assert all(finding.intact for finding in audit.findings(graph))


@pytest.mark.parametrize("variant", ["normal+every(3)", "headwise+every(4)+lowrank(32)"])
def test_what_rests_leaves_other_gradients_alone_in_bf16(tiny: Tiny, tmp_path: Path, variant: str) -> None:
    """Each kind of step has weight gradients in launches of its own, some of which another kind has as well."""
    fields = {"model_type": variant, "d_model": 128, "d_ff": 256, "max_lr": 3e-4, "max_steps": 60}
    runs = [fit(gpu(tiny, **fields, engine=e, out_dir=str(tmp_path / e))) for e in ("eager", "graph")]
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), rel=5e-3)


def final_moments(folder: RunFolder) -> list[tuple[str, torch.Tensor]]:
    return sorted(load_file(folder.checkpoints / "step-40" / "optimizer.safetensors").items())


def test_a_corpus_that_does_not_fit_is_staged(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resident = fit(gpu(tiny, use_amp=False, out_dir=str(tmp_path / "resident")))
    monkeypatch.setattr("oelm.training.graph.RESIDENT_SHARE", 0.0)
    staged = fit(gpu(tiny, use_amp=False, out_dir=str(tmp_path / "staged")))
    assert losses(staged) == pytest.approx(losses(resident), rel=1e-5)


def test_a_plan_is_renewed_as_often_as_needed(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"use_amp": False, "log_interval": 7}
    long = fit(gpu(tiny, **fields, out_dir=str(tmp_path / "long")))
    monkeypatch.setattr("oelm.training.graph.PLANNED_STEPS", 8)
    short = fit(gpu(tiny, **fields, out_dir=str(tmp_path / "short")))
    assert losses(short) == pytest.approx(losses(long), rel=1e-5)


def test_the_gpu_computes_what_the_cpu_does(tiny: Tiny, tmp_path: Path) -> None:
    on_gpu = fit(gpu(tiny, use_amp=False, out_dir=str(tmp_path / "gpu")))
    on_cpu = fit(gpu(tiny, device="cpu", out_dir=str(tmp_path / "cpu")))
    assert losses(on_gpu) == pytest.approx(losses(on_cpu), rel=1e-3)


@pytest.mark.parametrize("engine", ["eager", "compile", "graph"])
def test_deterministic_resume_ends_with_the_same_bytes(tiny: Tiny, tmp_path: Path, engine: str) -> None:
    """In processes of their own: one runs through, the other is taken back to its middle and runs on."""
    fields = {"engine": engine, "deterministic": True, "dropout": 0.1, "model_type": "oelm_v2"}
    whole = train(gpu(tiny, **fields, out_dir=str(tmp_path / "whole")))
    cut = train(gpu(tiny, **fields, out_dir=str(tmp_path / "cut")))
    train(gpu(tiny, **fields, out_dir=str(cut.path), resume=str(cut.checkpoints / "step-30")))
    assert [session["first_step"] for session in cut.manifest()["sessions"]] == [0, 30]
    for name in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = (folder.checkpoints / "step-40" / name for folder in (cut, whole))
        assert ours.read_bytes() == theirs.read_bytes()


def test_the_study_runs_in_fp16_and_saves_its_scaler(tiny: Tiny) -> None:
    folder = fit(gpu(tiny, recipe="study", warmup_steps=5, max_lr=3e-3))
    assert folder.manifest()["sessions"][0]["precision"] == "float16"
    assert losses(folder)[-1] < losses(folder)[0]
    state = (folder.checkpoints / "step-40" / "state.json").read_text()
    assert '"growth_factor"' in state


def test_frozen_stays_frozen_and_steps_are_timed_on_the_device(tiny: Tiny) -> None:
    folder = fit(gpu(tiny, model_type="oelm_v2"))
    assert all(finding.intact for finding in audit.findings(folder))
    assert all(record["step_time"] > 0 for record in read_lines(folder.metrics))
    assert torch.cuda.get_device_name() == folder.manifest()["sessions"][0]["device"]
