"""Freezing, thawing and resting in the course of a run: what moves when, what is recorded, and resuming."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from oelm.config import RunConfig
from oelm.data.batches import Batches, open_corpus
from oelm.errors import UserError
from oelm.model.gpt import GPT
from oelm.runfolder import RunFolder, read_lines
from oelm.training import audit
from oelm.training.loop import fit
from oelm.training.step import TorchEngine, open_engine
from oelm.training.world import World
from tests.conftest import needs
from tests.training.test_distributed import torchrun

Tiny = Callable[..., RunConfig]
QUERY = "blocks.0.attention.q.weight"
VALUE = "blocks.0.attention.v.weight"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checkpoint stays."""
    monkeypatch.setattr("oelm.training.checkpoint.KEPT", 1000)


def history(folder: RunFolder, name: str) -> list[Tensor]:
    """A tensor in every checkpoint, in the order of the steps."""
    paths = sorted(folder.checkpoints.glob("step-*"), key=lambda path: int(path.name[5:]))
    return [load_file(path / "model.safetensors")[name] for path in paths]


def moves(folder: RunFolder, name: str) -> list[bool]:
    """Whether a tensor moved from each checkpoint to the next."""
    tensors = history(folder, name)
    return [not torch.equal(a, b) for a, b in itertools.pairwise(tensors)]


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("variant", "moved"),
    [
        ("normal+freeze(3)", [True, True, False, False, False]),
        ("normal+freeze(50%)", [True, True, False, False, False]),
        ("headwise+thaw(3)", [False, False, True, True, True]),
        ("normal+every(2)", [False, True, False, True, False]),
        ("normal+trained", [True] * 5),
        ("headwise", [False] * 5),
    ],
)
def test_a_matrix_moves_when_its_variant_says_so(tiny: Tiny, variant: str, moved: list[bool]) -> None:
    folder = fit(tiny(model_type=variant, max_steps=6, save_interval=1, weight_decay=0.5))
    assert moves(folder, QUERY) == moved
    assert all(moves(folder, VALUE))
    assert all(finding.intact for finding in audit.findings(folder))


@pytest.mark.usefixtures("kept")
def test_the_two_sides_may_differ(tiny: Tiny) -> None:
    folder = fit(tiny(model_type="q=headwise+thaw(2),k=normal+every(3)", max_steps=5, save_interval=1))
    assert moves(folder, QUERY) == [False, True, True, True]
    assert moves(folder, QUERY.replace(".q.", ".k.")) == [False, False, True, False]


@pytest.mark.usefixtures("kept")
def test_layers_may_freeze_one_after_the_other(tiny: Tiny) -> None:
    folder = fit(tiny(model_type="normal+freeze(2-4)", max_steps=6, save_interval=1))
    assert moves(folder, QUERY) == [True, False, False, False, False]
    assert moves(folder, QUERY.replace("s.0", "s.1")) == [True, True, True, False, False]
    assert all(finding.intact for finding in audit.findings(folder))


@pytest.mark.usefixtures("kept")
def test_only_some_heads_and_layers_may_be_frozen(tiny: Tiny) -> None:
    folder = fit(tiny(model_type="q=headwise+heads(50%),k=headwise+layers(1)", max_steps=5, save_interval=1))
    key = QUERY.replace(".q.", ".k.")
    assert [any(moves(folder, name)) for name in (QUERY, QUERY.replace("weight", "free"))] == [False, True]
    assert [any(moves(folder, name)) for name in (key, key.replace("s.0", "s.1"))] == [True, False]
    assert all(finding.intact for finding in audit.findings(folder))
    assert len(audit.findings(folder)) == 3 * 7  # three frozen matrices, at the end, in five checkpoints, in the best


@pytest.mark.usefixtures("kept")
def test_a_frozen_matrix_has_no_moments_and_a_thawed_one_begins_at_zero(tiny: Tiny) -> None:
    folder = fit(tiny(model_type="q=normal+freeze(2),k=headwise+thaw(2)", max_steps=5, save_interval=1))
    states = [load_file(folder.checkpoints / f"step-{step}" / "optimizer.safetensors") for step in range(1, 6)]
    assert [QUERY + ".exp_avg" in state for state in states] == [True, True, False, False, False]
    key = QUERY.replace(".q.", ".k.") + ".step"
    assert [state[key].item() if key in state else None for state in states] == [None, None, 1, 2, 3]
    assert [state[VALUE + ".step"].item() for state in states] == [1, 2, 3, 4, 5]


def test_freezing_is_recorded_with_a_hash_of_each_matrix(tiny: Tiny) -> None:
    folder = fit(tiny(model_type="q=normal+freeze(5),k=headwise+thaw(7)"))
    events = json.loads((folder.path / audit.FILE).read_text())["events"]
    assert [(e["event"], e["step"], len(e["sha256"])) for e in events] == [
        ("freeze", 0, 2),
        ("freeze", 5, 2),
        ("thaw", 7, 2),
        ("end", 20, 2),
    ]
    assert events[1]["sha256"] == events[3]["sha256"]
    assert events[0]["sha256"] == events[2]["sha256"]
    log = (folder.path / "training.log").read_text()
    assert "2 matrices frozen after step 5" in log
    assert "2 matrices thawed after step 7" in log


def test_the_audit_notices_a_matrix_that_moved_while_it_was_frozen(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    step = TorchEngine.step

    def leaking(engine: TorchEngine, number: int) -> None:
        step(engine, number)
        if number == 12:
            with torch.no_grad():
                engine.model.get_parameter(QUERY).add_(1e-6)

    monkeypatch.setattr(TorchEngine, "step", leaking)
    folder = fit(tiny(model_type="normal+freeze(5)"))
    changed = {(finding.matrix, finding.place) for finding in audit.findings(folder) if not finding.intact}
    assert changed >= {(QUERY, "step 20 (end)"), (QUERY, "checkpoints/step-20/model.safetensors")}
    assert (QUERY, "checkpoints/step-10/model.safetensors") not in changed


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    "variant",
    [
        "normal+freeze(5)",
        "headwise+thaw(5)",
        "q=normal+every(3),k=headwise+thaw(6)",
        "headwise+thaw(4-6)+heads(50%)+shift(2)+core+lowrank(4)+residual(2)+gain+bias+temperature+rate(0.5)",
    ],
)
@pytest.mark.parametrize("start", [4, 5, 6])
def test_a_run_taken_back_over_a_change_ends_with_the_same_bytes(tiny: Tiny, variant: str, start: int) -> None:
    fields = {"model_type": variant, "max_steps": 8, "save_interval": 1, "log_interval": 1}
    folder = fit(tiny(**fields))
    last = folder.checkpoints / "step-8"
    files = [last / "model.safetensors", last / "optimizer.safetensors", folder.path / audit.FILE]
    before = [path.read_bytes() for path in files]
    losses = [record["loss"] for record in read_lines(folder.metrics)]
    fit(tiny(**fields, resume=str(folder.checkpoints / f"step-{start}")))
    assert [path.read_bytes() for path in files] == before
    assert [record["loss"] for record in read_lines(folder.metrics)] == losses


@pytest.mark.parametrize(
    "variant", ["q=normal+freeze(3),k=headwise+thaw(5)", "normal+every(3)", "headwise+heads(50%)+lowrank(4)+shift"]
)
def test_two_processes_freeze_together(tiny: Tiny, tmp_path: Path, variant: str) -> None:
    fields = {"model_type": variant, "max_steps": 8, "log_interval": 1}
    one = fit(tiny(**fields, out_dir=str(tmp_path / "one")))
    result = torchrun(tiny(**fields, out_dir=str(tmp_path / "two")))
    assert result.returncode == 0, result.stderr
    ours, theirs = ([r["loss"] for r in read_lines(run.metrics)] for run in (RunFolder(tmp_path / "two"), one))
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_compiled_and_eager_rest_alike(tiny: Tiny, tmp_path: Path) -> None:
    needs("compiler")
    fields = {"model_type": "normal+every(2)", "max_steps": 6, "log_interval": 1}
    runs = [fit(tiny(**fields, engine=e, out_dir=str(tmp_path / e))) for e in ("eager", "compile")]
    ours, theirs = ([record["loss"] for record in read_lines(run.metrics)] for run in runs)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_no_gradient_is_computed_for_what_rests(tiny: Tiny) -> None:
    """In the FLOPs of a step's products, which fall by just those of the weight gradients of Q and K."""
    config = tiny(model_type="normal+every(2)")
    corpus = open_corpus(config.data_folder, 0, config.seq_len)
    config = config.resolved(corpus.vocab_size)
    batches = Batches(corpus.split("train"), config.seq_len, config.batch_size, config.seed)
    engine = open_engine(GPT(config, 0), config, World(0, 1, torch.device("cpu")), batches)

    def products(step: int) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_flops=True) as profile:
            engine.step(step)
        return sum(event.flops for event in profile.key_averages() if event.key in ("aten::mm", "aten::addmm"))

    per_matrix = 2 * config.tokens_per_step * config.d_model**2
    assert products(0) - products(1) == 2 * config.num_layers * per_matrix


def test_a_change_that_would_never_come_is_refused(tiny: Tiny) -> None:
    with pytest.raises(UserError, match=r"the run ends after 20 steps, so there would be nothing to freeze at step 20"):
        tiny(model_type="normal+freeze(20)")
