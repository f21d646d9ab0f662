"""The audit: silent about nothing, and not to be fooled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file

from oelm import cli
from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.model.querykey import birth
from oelm.runfolder import RunFolder
from oelm.training import audit
from oelm.training.checkpoint import tensor_hash
from oelm.training.loop import fit
from tests.conftest import oelm

Tiny = Callable[..., RunConfig]


def test_a_frozen_run_is_proved_frozen_everywhere(tiny: Tiny) -> None:
    folder = fit(tiny(model_type="oelm_v2"))
    findings = audit.findings(folder)
    assert all(finding.intact for finding in findings)
    assert {f.place for f in findings} == {
        "step 20 (end)",
        "checkpoints/best.safetensors",
        "checkpoints/step-10/model.safetensors",
        "checkpoints/step-20/model.safetensors",
    }
    events = json.loads((folder.path / audit.FILE).read_text())["events"]
    assert [(event["event"], event["step"]) for event in events] == [("freeze", 0), ("end", 20)]
    assert events[0]["sha256"] == events[1]["sha256"]
    assert len(events[0]["sha256"]) == 4


def test_the_command_reports_every_run_and_notices_a_single_changed_bit(tiny: Tiny, tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("a", "b", "c")]
    for run in runs:
        fit(tiny(model_type="oelm_v2", max_steps=2, warmup_steps=1, out_dir=str(run)))
    result = oelm("audit", *map(str, runs))
    assert result.returncode == 0
    assert result.stdout.count("4 frozen matrices, bit-identical") == 3
    for run in runs[:2]:
        path = run / "checkpoints" / "step-2" / "model.safetensors"
        weights = load_file(path)
        weights["blocks.0.attention.q.weight"][0, 0] *= 1 + 2**-23
        save_file(weights, path)
    result = oelm("audit", *map(str, runs))
    assert result.returncode == 1
    a, b, c = result.stdout.splitlines()
    for line, run in ((a, runs[0]), (b, runs[1])):
        assert line == f"{run}: NOT frozen: blocks.0.attention.q.weight in checkpoints/step-2/model.safetensors"
    assert "4 frozen matrices, bit-identical" in c
    assert result.stderr == f"oelm: NOT frozen: {runs[0]}, {runs[1]}\n"


def test_a_record_that_forgot_what_was_frozen_is_no_proof(tiny: Tiny) -> None:
    folder = fit(tiny(model_type="oelm_v2"))
    (folder.path / audit.FILE).write_text('{"events": []}')
    findings = audit.findings(folder)
    assert len({finding.matrix for finding in findings}) == 4
    assert not any(finding.intact for finding in findings)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "events is missing"),
        ('{"events": 5}', "events should be of type list, not 5"),
        ('{"events": [{}]}', r"events\[0\].event is missing"),
        ('{"events": [{"event": "freeze", "step": 0, "sha256": []}]}', r".*sha256 should be of type dict"),
        ('{"events": [{"event": "freeze", "step": 0, "sha256": {"q": null}}]}', r".*sha256.q is missing"),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / audit.FILE).write_text(content)
    with pytest.raises(UserError, match=rf"{audit.FILE} is damaged: {message}"):
        audit.findings(RunFolder(tmp_path))


def test_weights_that_cannot_be_read_are_named(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fit(tiny(model_type="oelm_v2", max_steps=2, warmup_steps=1))
    path = folder.checkpoints / "best.safetensors"
    for damaged in (
        path.read_bytes()[:100],
        save({"blocks.0.attention.q.weight": torch.zeros(2, dtype=torch.bfloat16)}),
    ):
        path.write_bytes(damaged)
        with pytest.raises(SystemExit) as end:
            cli.main(["audit", str(folder.path)])
        assert end.value.code == 2
        assert capsys.readouterr().err.startswith(f"oelm: {path} proves nothing: cut short or damaged (")


def test_a_baseline_has_nothing_frozen(tiny: Tiny) -> None:
    folder = fit(tiny())
    assert audit.findings(folder) == []


def test_a_record_that_agrees_with_itself_but_not_with_the_seed_is_no_proof(tiny: Tiny) -> None:
    """Another matrix in every checkpoint, and its hash in the record as if it had been born so."""
    folder, name = fit(tiny(model_type="oelm_v2")), "blocks.0.attention.q.weight"
    other = torch.eye(32)
    for path in folder.checkpoints.rglob("*.safetensors"):
        if path.name in ("model.safetensors", "best.safetensors"):
            with safe_open(path, framework="pt") as file:
                about = file.metadata()
            save_file({**load_file(path), name: other}, path, metadata=about)
    record = folder.path / audit.FILE
    events = json.loads(record.read_text())["events"]
    for event in events:
        event["sha256"][name] = tensor_hash(other)
    record.write_text(json.dumps({"events": events}))
    changed = {(finding.matrix, finding.place) for finding in audit.findings(folder) if not finding.intact}
    assert changed == {
        (name, f"checkpoints/{path}")
        for path in ("best.safetensors", "step-10/model.safetensors", "step-20/model.safetensors")
    }


def test_births_are_the_same_but_for_their_last_bits(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fit(tiny(model_type="q=global,k=shuffle"))
    monkeypatch.setattr(audit, "birth", lambda *which: birth(*which) + 1e-7)
    assert all(finding.intact for finding in audit.findings(folder))


def test_a_finished_run_without_evidence_is_not_passed(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    folder = fit(tiny(model_type="oelm_v2", max_steps=2, warmup_steps=1))
    record = folder.path / audit.FILE
    record.write_text(json.dumps({"events": json.loads(record.read_text())["events"][:1]}))
    shutil.rmtree(folder.checkpoints)
    with pytest.raises(SystemExit) as end:
        cli.main(["audit", str(folder.path)])
    assert end.value.code == 1
    assert "blocks.0.attention.k.weight in the end, which is not on record" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["step-20", "best.safetensors"])
def test_weights_of_another_run_prove_nothing(tiny: Tiny, tmp_path: Path, name: str) -> None:
    """Those of the same seed have the same frozen matrices."""
    ours = fit(tiny(model_type="oelm_v2", out_dir=str(tmp_path / "ours")))
    theirs = fit(tiny(model_type="oelm_v2", max_lr=1e-3, out_dir=str(tmp_path / "theirs")))
    here, there = ours.checkpoints / name, theirs.checkpoints / name
    if here.is_dir():
        shutil.rmtree(here)
        shutil.copytree(there, here)
    else:
        shutil.copy(there, here)
    with pytest.raises(UserError, match="proves nothing: it is of another run"):
        audit.findings(ours)
