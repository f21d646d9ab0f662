"""oelm probe: what is learnt is seen, nothing is done twice, and rates are chosen by other exercises than judge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oelm import variants
from oelm.errors import UserError
from oelm.probes.options import Probe
from oelm.probes.probe import ENTRY, notes, probe, scores, table, train
from tests.conftest import oelm

SMALL: dict[str, Any] = {"d_model": 32, "batch_size": 32, "max_steps": 100, "learning_rates": (3e-3,), "device": "cpu"}


def entry(variant: str, rate: float, seed: int, chosen_by: float, score: float) -> dict[str, Any]:
    values = (str(variants.parse(variant)), "recall", rate, seed, chosen_by, score)
    return dict(zip(ENTRY, values, strict=True))


def test_a_baseline_learns_induction_and_one_that_is_frozen_is_slower(tmp_path: Path) -> None:
    options = Probe(tasks=("induction",), **{**SMALL, "max_steps": 200}, out=str(tmp_path))
    found = scores(probe(options, say=lambda line: None), options)
    baseline, frozen = (found[name, "induction"].mean for name in options.names)
    assert baseline > 0.5
    assert baseline > frozen + 0.1


def test_what_is_there_is_not_run_again_and_says_what_it_is_of(tmp_path: Path) -> None:
    fields = {**SMALL, "max_steps": 2, "out": str(tmp_path)}
    said: list[str] = []
    probe(Probe(variants=("baseline",), tasks=("memory",), **fields), say=said.append)
    probe(Probe(variants=("normal+trained", "headwise"), tasks=("memory",), **fields), say=said.append)
    assert len(said) == 2
    content = json.loads((tmp_path / "probes.json").read_text())
    assert [each["variant"] for each in content["entries"]] == ["normal+trained", "headwise"]
    assert content["models"]["max_steps"] == 2
    assert content["machine"]["versions"]["torch"]
    with pytest.raises(UserError, match="is about other models"):
        probe(Probe(tasks=("memory",), **{**fields, "max_steps": 3}), say=said.append)


def test_the_rate_is_chosen_by_other_exercises_than_those_that_judge() -> None:
    entries = [entry("baseline", 1e-3, 0, 0.5, 0.9), entry("baseline", 1e-2, 0, 0.6, 0.4)]
    entries += [entry("baseline", 1e-3, 1, 0.5, 0.9), entry("baseline", 1e-2, 1, 0.6, 0.6)]
    entries += [entry("baseline", 1e-1, 0, 0.9, 0.9), entry("baseline", 1e-2, 2, 0.9, 0.9)]  # not asked for
    options = Probe(variants=("baseline",), tasks=("recall",), learning_rates=(1e-3, 1e-2), seeds=2)
    found = scores({"entries": entries}, options)
    assert found["baseline", "recall"].mean == pytest.approx(0.5)
    headings, rows = table(found)
    assert headings == ("variant", "recall")
    assert rows[0][0] == "Baseline"
    assert rows[0][1].startswith("50.0% ± 127")
    assert rows[1] == ("a blind guess", "3.1%")
    with pytest.raises(UserError, match="lacks 2 of the probes"):
        scores({"entries": entries}, replace(options, learning_rates=(1e-3, 1e-2, 2e-2)))


def test_what_weakens_a_score_is_said() -> None:
    rates, names = (1e-3, 1e-2, 1e-1), ("baseline", "oelm_v3")
    best = {"baseline": 1e-2, "oelm_v3": 1e-1}
    entries = [entry(name, rate, 0, 0.9 if rate == best[name] else 0.1, 0.9) for name in names for rate in rates]
    options = Probe(variants=names, tasks=("recall",), learning_rates=rates)
    edge, unfair, single = notes({"entries": entries}, options)
    assert edge.endswith("so a better one may lie beyond: OELM-v3 on recall")
    assert unfair == "OELM-v3 has shift, which no baseline here has; add baseline_shift to --variants"
    assert single.startswith("one seed each")
    alone = replace(options, variants=("normal+trained+residual(16)", "headwise+residual(25%)"), learning_rates=(1e-3,))
    entries = [entry(name, 1e-3, 0, 0.9, 0.9) for name in alone.variants]
    assert notes({"entries": entries}, alone) == ["learning rate not tuned", single]


@pytest.mark.parametrize("variant", ["normal+freeze(50%)", "headwise+thaw(30%)+lowrank(4)+shift", "normal+every(2)"])
def test_every_variant_can_be_probed(variant: str) -> None:
    options = Probe(variants=(variant,), tasks=("hops",), **{**SMALL, "max_steps": 4})
    chosen_by, score = train(options.config(variant, "hops", 1e-3, 0), "hops")
    assert 0 <= chosen_by <= 1
    assert 0 <= score <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "recal"], "did you mean recall"),
        (["--variants", "oelm_v22"], "did you mean oelm_v2"),
        (["--d_model", "40"], "must be a multiple of 16"),
        (["--learning-rates", "1e-3", "0.001"], "--learning-rates names a rate twice"),
        (["--seeds", "0"], "--seeds 0 must lie between"),
        (["--learning-rates", "-1"], "--max_lr -1.0 is out of range"),
    ],
)
def test_what_cannot_be_probed_is_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    result = oelm("probe", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_command_prints_the_table_and_draws_it(tmp_path: Path) -> None:
    arguments = [
        "--max-steps",
        "2",
        "--d-model",
        "16",
        "--batch-size",
        "4",
        "--learning-rates",
        "1e-3",
        "--device",
        "cpu",
    ]
    result = oelm("probe", *arguments, "--out", "probed", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "recall  induction  hops  memory" in " ".join(result.stdout.split()).replace(" ", "  ")
    assert "note: one seed each: no interval can be given" in result.stdout
    assert (tmp_path / "probed" / "probes.png").stat().st_size > 10_000
