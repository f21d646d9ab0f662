"""The graph engine on a CPU: all that the host does of it, with replays that compute anew instead of a CUDA graph.

Its kernels have stand-ins in plain PyTorch. What only a GPU can show is in test_gpu.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from oelm.config import RunConfig
from oelm.data.batches import Batches
from oelm.fast.working import Working
from oelm.model.gpt import GPT
from oelm.runfolder import RunFolder, read_lines
from oelm.training import audit, step
from oelm.training.loop import fit
from oelm.training.world import World
from tests.fast.reference import PlainAdamW

Tiny = Callable[..., RunConfig]
STEPS = 40


def recorded(work: Callable[[], None]) -> Any:
    """A graph whose replay does the work again. As on a GPU, recording runs it twice before."""
    work()
    work()
    return SimpleNamespace(replay=work)


@pytest.fixture(autouse=True)
def graph(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    kernels = ModuleType("oelm.fast.adamw_kernels")
    kernels.FusedAdamW = PlainAdamW  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "oelm.fast.adamw_kernels", kernels)
    monkeypatch.delitem(sys.modules, "oelm.training.graph", raising=False)
    import oelm.training.graph as module

    monkeypatch.setattr(module, "recorded", recorded)
    monkeypatch.setattr(Working, "compile", lambda working: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**40, 2**40))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    original = step.open_engine

    def open_engine(model: GPT, config: RunConfig, world: World, batches: Batches) -> step.Engine:
        if config.engine != "graph":
            return original(model, config, world, batches)
        engine: step.Engine = module.GraphEngine(model, config, world, batches)
        return engine

    monkeypatch.setattr(step, "open_engine", open_engine)
    yield module
    sys.modules.pop("oelm.training.graph", None)


def curves(folder: RunFolder) -> tuple[list[float], list[float], list[float]]:
    lines = read_lines(folder.metrics)
    scores = [score["loss"] for score in folder.scores()]
    return [line["loss"] for line in lines], [line["grad_norm"] for line in lines], scores


@pytest.mark.parametrize(
    ("variant", "planned", "share", "fields"),
    [
        ("baseline", 256, 0.5, {"accumulation": 4, "dropout": 0.1}),
        ("q=normal+freeze(10),k=headwise+thaw(25)", 8, 0.5, {"log_interval": 7}),
        ("q=normal+every(3),k=normal+freeze(10-20)+rate(0.5)", 8, 0.0, {"layer_lr": 0.5}),
        ("q=headwise+lowrank(16)+rate(2),k=normal+every(2)+shift+core", 256, 0.5, {"grad_clip": 0.0, "decay": "all"}),
    ],
    ids=["accumulation", "freeze and thaw, short plans", "resting, staged, short plans", "corrections"],
)
def test_it_trains_as_the_eager_engine_does(
    tiny: Tiny,
    tmp_path: Path,
    graph: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    planned: int,
    share: float,
    fields: dict[str, Any],
) -> None:
    """Losses, norms, scores and moments; run through, and taken back to go on under either engine."""
    monkeypatch.setattr(graph, "PLANNED_STEPS", planned)
    monkeypatch.setattr(graph, "RESIDENT_SHARE", share)
    fields = {"model_type": variant, "max_steps": STEPS, "max_lr": 3e-4, **fields}
    eager = fit(tiny(**fields, engine="eager", out_dir=str(tmp_path / "eager")))
    run = tiny(**fields, engine="graph", out_dir=str(tmp_path / "graph"))
    folder = fit(run)

    def agree() -> None:
        for ours, theirs in zip(curves(folder), curves(eager), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)
        mine, wanted = (load_file(f.checkpoints / f"step-{STEPS}" / "optimizer.safetensors") for f in (folder, eager))
        torch.testing.assert_close(mine, wanted, rtol=1e-3, atol=1e-7)
        assert all(finding.intact for finding in audit.findings(folder))

    agree()
    for engine in ("graph", "eager"):
        resume = str(folder.checkpoints / "step-30")
        fit(tiny(**fields, engine=engine, out_dir=str(folder.path), resume=resume))
        agree()
    assert [session["engine"] for session in folder.manifest()["sessions"]] == ["graph", "graph", "eager"]


@pytest.mark.parametrize(
    ("variant", "steps"),
    [("baseline", 1), ("oelm_v3", 2), ("headwise", 3), ("normal+thaw(39)", 40), ("q=normal,k=normal+every(39)", 40)],
)
def test_a_run_may_end_while_it_is_rehearsed(tiny: Tiny, tmp_path: Path, variant: str, steps: int) -> None:
    fields = {"model_type": variant, "max_steps": steps, "warmup_steps": 1, "max_lr": 3e-4, "log_interval": 1}
    graph, eager = (fit(tiny(**fields, engine=name, out_dir=str(tmp_path / name))) for name in ("graph", "eager"))
    for ours, theirs in zip(curves(graph), curves(eager), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


def test_a_rehearsal_leaves_no_trace(tiny: Tiny, graph: ModuleType) -> None:
    config = tiny(model_type="normal+every(2)", vocab_size=64).resolved(64)
    tokens = torch.arange(4000).remainder(61).to(torch.uint16).numpy()
    batches = Batches(tokens, config.seq_len, config.batch_size, config.seed)
    engine = graph.GraphEngine(GPT(config, 0), config, World(0, 1, torch.device("cpu")), batches)

    def state() -> dict[str, torch.Tensor]:
        everything = {**dict(engine.model.named_parameters()), **engine.moments()}
        return {name: tensor.detach().clone() for name, tensor in everything.items()}

    born = state()
    engine.rehearse(0)
    torch.testing.assert_close(state(), born, rtol=0, atol=0)
    for number in range(3):
        engine.step(number)
    trained = state()
    assert not torch.equal(trained["norm.weight"], born["norm.weight"])
    assert len(engine.results()) == 3
    engine.rebuild()
    engine.rehearse(3)
    torch.testing.assert_close(state(), trained, rtol=0, atol=0)


def test_a_corpus_is_copied_whole_piece_by_piece(graph: ModuleType) -> None:
    tokens = np.arange(1000, dtype=np.int16)
    assert graph._copied(tokens, torch.device("cpu"), at_once=300).tolist() == list(range(1000))
