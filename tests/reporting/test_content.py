"""What a report says is what the comparison says; what cannot be judged stops nothing and is named."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import Measure, compare, compare_all, gap_with_interval
from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.reporting.ablation import ablation
from oelm.reporting.blocks import Curves, Figures, Finding, Notes, Points, Records, Report, Table, Texts
from oelm.reporting.content import content
from oelm.reporting.curves import thinned, time_unit
from oelm.reporting.report import report
from oelm.runfolder import RunFolder, find_runs
from oelm.runs import attempts
from oelm.training.loop import fit
from tests.conftest import oelm
from tests.reporting.conftest import SMALL, part


def test_the_tables_are_those_of_the_comparison(said: Report, runs: list[RunFolder]) -> None:
    comparison = compare(runs)
    quality, cost = part(said, "Quality and cost")
    assert isinstance(quality, Table)
    assert isinstance(cost, Table)
    assert (quality.headings, quality.rows) == comparison.quality
    assert (cost.headings, cost.rows) == comparison.cost
    (notes,) = part(said, "Before you believe it")
    assert notes == Notes(comparison.warnings)


def test_the_verdict_is_that_of_the_comparison_with_its_interval(said: Report, runs: list[RunFolder]) -> None:
    row = compare(runs).rows[1]
    (finding,) = part(said, "Verdict")
    assert isinstance(finding, Finding)
    assert row.gap is not None
    assert (finding.title, finding.verdict) == ("OELM-Freeze", row.verdict)
    assert gap_with_interval(row.gap) in finding.sentences[0]


@pytest.mark.parametrize(("criterion", "verdict"), [(0.5, "not met"), (2.0, "met")])
def test_the_criterion_decides(runs: list[RunFolder], criterion: float, verdict: str) -> None:
    (finding,) = part(content(runs, Measure(criterion)), "Verdict")
    assert isinstance(finding, Finding)
    assert finding.verdict == verdict


def test_one_seed_gets_no_verdict(runs: list[RunFolder]) -> None:
    alone = [run for run in runs if run.config().seed == 0]
    (finding,) = part(content(alone), "Verdict")
    assert isinstance(finding, Finding)
    assert finding.verdict == "one seed only"
    assert "no verdict" in finding.sentences[0]


def test_the_ablation_pairs_by_seed_and_names_what_is_missing(runs: list[RunFolder]) -> None:
    comparison = compare(runs)
    (table,) = ablation(comparison)
    answers = {row[0]: row for row in table.rows}
    gap = comparison.rows[1].gap
    assert gap is not None
    assert gap_with_interval(gap) in answers["what start and freezing cost together"]
    assert answers["what freezing costs"][-1] == "open: no finished run of Orthogonal, trained"
    assert answers["what orthogonality brings"][-1] == "open: no finished run of OELM-Matched"
    assert answers["what scale brings"][-1] == "open: no finished run of OELM-Random, OELM-Matched"


def test_a_correction_is_held_against_itself_over_nothing(
    runs: list[RunFolder], storybook: Path, tmp_path: Path
) -> None:
    """And where that was not run or cannot be, it says so; over other things and without a part, where it was run."""

    def answers(*names: str) -> dict[str, tuple[str, ...]]:
        for name in names:
            fit(RunConfig(**SMALL, model_type=name, out_dir=tmp_path / name, data_path=storybook))
        (table,) = ablation(compare([run for run in runs if run.config().seed == 0] + find_runs([tmp_path])))
        return {row[1]: row for row in table.rows[4:]}

    question, pair = "what the frozen matrix brings under its correction", "zero+lowrank(2) → headwise+lowrank(2)"
    alone = "headwise+lowrank(2)"
    assert answers(alone)[alone] == (question, alone, "–", "open: no finished run of the same over zero")
    found = answers("zero+lowrank(2)", "matched+lowrank(2)", "headwise+lowrank(2)+gain", "headwise+gain")
    plain, gained, gain = "headwise+lowrank(2)", "headwise+lowrank(2)+gain", "headwise+gain"
    assert {each: row[0] for each, row in found.items()} == {
        f"OELM-Freeze → {plain}": "what lowrank brings",
        f"OELM-Freeze → {gain}": "what gain brings",
        f"{gain} → {gained}": "what lowrank brings",
        f"{plain} → {gained}": "what gain brings",
        pair: question,
        gained: question,
        f"matched+lowrank(2) → {plain}": "what orthogonality brings under its correction",
        gain: question,
    }
    assert found[gain][3] == "open: parts would have no effect over zero"
    losses = {run.config().model_type: run.scores()[-1]["loss"] for run in find_runs([tmp_path])}
    gap = losses["headwise+lowrank(2)"] - losses["zero+lowrank(2)"]
    assert found[pair][2] == f"{100 * math.expm1(gap):+.1f} %"


def test_perplexity_on_the_way_is_the_mean_over_the_seeds(said: Report, runs: list[RunFolder]) -> None:
    (table,) = part(said, "Validation perplexity on the way")
    assert isinstance(table, Table)
    assert table.headings == ("variant", "10 % (step 1)", "30 % (step 3)", "60 % (step 6)", "100 % (step 10)")
    losses = [run.scores()[2]["loss"] for run in runs if run.config().model_type == "oelm_v2"]
    assert table.rows[1][2] == f"{math.exp(sum(losses) / 2):.3f}"


def test_curves_hold_means_and_bands(said: Report, runs: list[RunFolder]) -> None:
    (block,) = part(said, "Validation curves")
    assert isinstance(block, Figures)
    steps, tokens, seconds = (figure.drawing for figure in block.figures)
    assert isinstance(steps, Curves)
    assert isinstance(tokens, Curves)
    assert isinstance(seconds, Curves)
    assert list(steps.curves[0].x) == list(range(1, 11))
    assert list(tokens.curves[0].x) == [128 * step for step in range(1, 11)]
    last = [run.scores()[9] for run in runs if run.config().model_type == "baseline"]
    assert seconds.curves[0].x[-1] == pytest.approx(sum(score["elapsed"] for score in last) / 2)
    band = steps.curves[0].band
    assert band is not None
    assert [side[-1] for side in band] == pytest.approx(sorted(score["ppl"] for score in last))
    assert [title for title, _ in block.legend] == ["Baseline", "OELM-Freeze"]


def test_points_layers_times_and_samples_are_there(said: Report, runs: list[RunFolder]) -> None:
    (cost,) = part(said, "Quality against cost")
    assert isinstance(cost, Figures)
    shares = cost.figures[1].drawing
    assert isinstance(shares, Points)
    assert [point.x for point in shares.points] == [100 * row.trained_share for row in compare(runs).rows]
    (layers,) = part(said, "Attention and drift, layer by layer")
    assert isinstance(layers, Figures)
    assert [figure.title for figure in layers.figures] == [
        "Attention entropy",
        "Drift of Q",
        "Drift of K",
        "Best previous-token head",
        "Best induction head",
    ]
    drift = layers.figures[1].drawing
    assert isinstance(drift, Curves)
    assert min(drift.curves[0].y) > 0
    assert list(drift.curves[1].y) == [0.0, 0.0]
    assert len(part(said, "Where the time went")) == 2
    (texts,) = part(said, "Samples, side by side")
    assert isinstance(texts, Texts)
    assert [text.title for text in texts.texts] == ["Baseline, seed 0", "OELM-Freeze, seed 0"]


def test_provenance_says_once_what_all_runs_share(said: Report, runs: list[RunFolder]) -> None:
    (block,) = part(said, "Provenance")
    assert isinstance(block, Records)
    shared, *each = block.records
    assert shared.title == "all 4 runs"
    names = dict(shared.facts)
    assert {"learning rate", "versions", "device", "sha256 train", "command"} - set(names) <= {"command"}
    assert names["learning rate"] == "0.003: taken as given, not searched"
    assert sorted(dict(record.facts)["run"] for record in each) == sorted(run.manifest()["run_id"] for run in runs)


@pytest.mark.parametrize(
    ("file", "content_of_it", "cause"),
    [
        ("manifest.json", '{"format": 99}', "has format 99"),
        ("evals.jsonl", "{half\n", "evals.jsonl, line 1 is damaged"),
        ("status.json", "{}", "state is missing"),
        ("config.yaml", "colour: blue\n", "unknown field 'colour'"),
        ("timing_stats.json", "[]", "should be of type dict"),
    ],
)
def test_a_run_that_cannot_be_read_is_listed_and_stops_nothing(
    spoilt: Callable[[str, str], Path], file: str, content_of_it: str, cause: str
) -> None:
    report = content(find_runs([spoilt(file, content_of_it)]))
    (block,) = report.sections[-1].parts[0].blocks
    assert isinstance(block, Records)
    (record,) = block.records
    assert cause in dict(record.facts)["cause"]
    assert part(report, "Verdict")


def test_a_run_that_failed_is_listed_with_its_cause(copied: Path) -> None:
    path = copied / "oelm_v2" / "seed-1" / "status.json"
    failed = {"state": "failed", "step": 4, "message": "the loss is nan at step 4"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **failed}))
    path.with_name("metrics.jsonl").unlink()
    (block,) = content(find_runs([copied])).sections[-1].parts[0].blocks
    assert isinstance(block, Records)
    assert block.records[0].facts == (("state", "failed"), ("step", "4/10"), ("cause", "the loss is nan at step 4"))


def test_a_run_that_was_killed_is_listed_with_how_far_it_got_and_why(copied: Path) -> None:
    path = copied / "oelm_v2" / "seed-1"
    status = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps({**status, "state": "running", "step": 0, "pid": 2**22 + 1}))
    attempts.ended(RunFolder(path), -9, "killed by SIGKILL from outside")
    (block,) = content(find_runs([copied])).sections[-1].parts[0].blocks
    assert isinstance(block, Records)
    facts = (("state", "dead"), ("step", "10/10"), ("cause", "killed by SIGKILL from outside"))
    assert block.records[0].facts == facts


def test_a_second_run_of_a_variant_and_seed_is_left_out(copied: Path) -> None:
    shutil.copytree(copied / "baseline" / "seed-0", copied / "baseline" / "seed-0-again")
    report = content(find_runs([copied]))
    (block,) = report.sections[-1].parts[0].blocks
    assert isinstance(block, Records)
    facts = dict(block.records[0].facts)
    assert facts["state"] == "finished"
    assert "the same variant and seed as" in facts["cause"]


def test_runs_of_which_none_is_finished_make_a_report_that_says_so(copied: Path) -> None:
    for path in copied.rglob("status.json"):
        path.unlink()
    report = content(find_runs([copied]))
    assert "No run is finished yet" in str(report.opening)
    (block,) = report.sections[0].parts[0].blocks
    assert isinstance(block, Records)
    assert len(block.records) == 4


def test_what_a_stranger_left_out_of_a_run_is_left_out_of_the_report(copied: Path) -> None:
    """Attention, drift and samples are told where they are there."""
    for path in copied.rglob("evals.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        bare: dict[str, Any] = {"attention_entropy": [], "q_drift": [], "k_drift": []}
        kept = [{name: value for name, value in {**line, **bare}.items() if name != "heads"} for line in lines]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in kept))
    for path in copied.rglob("step-10.txt"):
        path.unlink()
        os.mkfifo(path)
    report = content(find_runs([copied]))
    titles = [each.title for each in report.sections[0].parts]
    assert "Attention and drift, layer by layer" not in titles
    assert "None of the runs has written a sample." in str(part(report, "Samples, side by side"))


DAMAGE = {
    "manifest.json": [
        {"learning_rate": {"run_ids": 5}},
        {"learning_rate": {"run_ids": None}},
        {"learning_rate": {"run_ids": [[1]]}},
        {"sessions": "none"},
    ],
    "timing_stats.json": [
        {"median_step_time": 0},
        {"median_step_time": float("inf")},
        {"seconds_by_part": {"training": float("inf")}},
        {"seconds_by_part": [1]},
    ],
    "evals.jsonl": [
        {"loss": 1e308},
        {"loss": float("nan")},
        {"attention_entropy": [10**400]},
        {"heads": {"induction": [0.5]}},
        {"q_drift": None},
        {"elapsed": "long"},
    ],
}


@pytest.mark.parametrize(("file", "change"), [(file, change) for file, changes in DAMAGE.items() for change in changes])
def test_a_value_that_makes_no_sense_is_named_and_stops_nothing_else(
    file: str, change: dict[str, Any], copied: Path
) -> None:
    path = copied / "oelm_v2" / "seed-1" / file
    *others, last = path.read_text().splitlines() if file.endswith("l") else [path.read_text()]
    record = json.loads(last)
    for name, value in change.items():
        record[name] = {**record[name], **value} if isinstance(value, dict) else value
    path.write_text("\n".join([*others, json.dumps(record)]) + "\n")
    folders = find_runs([copied])
    assert file in str(content(folders).sections[-1])
    (comparison,) = compare_all(folders)
    assert [row.seeds for row in comparison.rows] == [(0, 1), (0,)]
    assert file in str(comparison)
    assert oelm("list", "--out-dir", str(copied)).returncode == 0


def test_what_looks_like_a_formula_or_is_half_a_sign_is_shown_as_it_can_be(copied: Path, tmp_path: Path) -> None:
    path = copied / "oelm_v2" / "seed-1" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["learning_rate"]["how"] = "$\\x$ \ud800"
    path.write_text(json.dumps(manifest))
    for kind in ("html", "md"):
        assert "x$ ?" in report(find_runs([copied]), tmp_path / f"a.{kind}").paths[0].read_text()


def test_a_copy_or_a_link_of_a_run_is_not_counted_twice(copied: Path) -> None:
    shutil.copytree(copied / "oelm_v2" / "seed-1", copied / "copy")
    (copied / "loop").symlink_to(copied)
    (comparison,) = compare_all(find_runs([copied]))
    assert [row.seeds for row in comparison.rows] == [(0, 1), (0, 1)]
    assert "the same variant and seed as" in str(comparison)


def test_runs_that_found_a_rate_are_not_judged(copied: Path, storybook: Path) -> None:
    for rate in (1e-3, 1e-2):
        trial = {"max_lr": rate, "seed": 9, "out_dir": copied / "tuning" / f"{rate}", "max_steps": 6}
        fit(RunConfig(**{**SMALL, **trial}, data_path=storybook))
    tuned = {"max_lr": 1e-2, "tuned_from": copied / "tuning", "out_dir": copied / "tuned", "seed": 0}
    fit(RunConfig(**{**SMALL, **tuned}, data_path=storybook))
    said = content(find_runs([copied]))
    assert "Runs that only served to find a learning rate, and are not judged: 2." in str(said.opening)
    assert len(said.sections) == 1
    assert "the best of 2 rates by validation loss" in str(part(said, "Provenance"))


def test_each_task_has_a_section(copied: Path) -> None:
    for path in (copied / "oelm_v2").rglob("evals.jsonl"):
        path.write_text(path.read_text().replace('"tokens_seen": 1280', '"tokens_seen": 9999'))
    report = content(find_runs([copied]))
    assert len(report.sections) == 2
    assert isinstance(report.opening[1], Table)  # the verdicts of all tasks


def test_a_criterion_that_is_no_number_is_refused(runs: list[RunFolder]) -> None:
    with pytest.raises(UserError, match="--criterion"):
        content(runs, Measure(0))


def test_long_curves_are_thinned_evenly_and_keep_their_ends() -> None:
    assert thinned(range(10), 20) == list(range(10))
    few = thinned(range(100_000), 250)
    assert (len(few), few[0], few[-1]) == (250, 0, 99_999)
    assert {few[i + 1] - few[i] for i in range(249)} <= {401, 402}


def test_times_are_told_in_the_unit_that_fits() -> None:
    assert [time_unit(seconds)[0] for seconds in (42, 1000, 20_000)] == ["s", "min", "h"]
