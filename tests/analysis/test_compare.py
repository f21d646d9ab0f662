"""Comparison: fair or refused, paired by seed, honest about one seed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oelm.analysis.compare import Comparison, Measure, Row, compare, compare_all
from oelm.analysis.results import read_result
from oelm.analysis.stats import Estimate
from oelm.config import RunConfig, run_id
from oelm.errors import UserError
from oelm.runfolder import RunFolder, find_runs
from oelm.training.loop import fit
from oelm.training.tuning import choice
from tests.conftest import oelm

Tiny = Callable[..., RunConfig]


@pytest.fixture
def train(tiny: Tiny, tmp_path: Path) -> Callable[..., RunFolder]:
    """Trains a run of a variant and seed for a few steps."""

    def run(name: str = "baseline", seed: int = 0, **changes: object) -> RunFolder:
        folder = tmp_path / f"{name}-{seed}-{len(list(tmp_path.iterdir()))}"
        return fit(tiny(**{"model_type": name, "seed": seed, "max_steps": 10, "out_dir": str(folder), **changes}))

    return run


@pytest.fixture(scope="module")
def finished(storybook: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """One run for the tests that leave it as they found it."""
    return fit(
        RunConfig(
            d_model=16,
            seq_len=16,
            max_steps=2,
            data_path=storybook,
            out_dir=tmp_path_factory.mktemp("run"),
            device="cpu",
        )
    )


def loss_of(folder: RunFolder) -> float:
    final = folder.final_eval()
    assert final is not None
    return float(final["loss"])


def test_the_gap_is_paired_by_seed_in_log_perplexity(train: Callable[..., RunFolder]) -> None:
    runs = {(name, seed): train(name, seed) for name in ("baseline", "oelm_v2") for seed in (0, 1, 2)}
    comparison = compare(list(runs.values()))
    baseline, frozen = comparison.rows
    gaps = [loss_of(runs["oelm_v2", seed]) - loss_of(runs["baseline", seed]) for seed in (0, 1, 2)]
    assert baseline.gap is None
    assert frozen.gap is not None
    assert frozen.gap.mean == pytest.approx(sum(gaps) / 3)
    assert frozen.gap.low is not None
    assert frozen.gap.low < frozen.gap.mean
    assert frozen.ppl == pytest.approx(math.exp(sum(loss_of(runs["oelm_v2", s]) for s in (0, 1, 2)) / 3))
    assert frozen.verdict in ("met", "undecided", "not met")
    assert frozen.seeds == (0, 1, 2)
    assert not any("one seed" in warning for warning in comparison.warnings)


def test_a_variant_with_a_shift_is_held_against_a_baseline_that_has_it_too(train: Callable[..., RunFolder]) -> None:
    baseline, v3 = train("baseline"), train("oelm_v3")
    (lacking,) = [note for note in compare([baseline, v3]).warnings if "shift" in note]
    assert "OELM-v3 has shift, which its baseline lacks" in lacking
    assert "train baseline_shift, too" in lacking
    shifted = train("baseline_shift")
    comparison = compare([baseline, shifted, v3])
    plain, other, judged = comparison.rows
    assert judged.gap is not None
    assert judged.gap.mean == pytest.approx(loss_of(v3) - min(loss_of(baseline), loss_of(shifted)))
    better = min([plain, other], key=lambda row: row.loss.mean).title
    assert "held against the better of the baselines with and without shift: OELM-v3" in comparison.warnings
    assert judged.reference == better
    headings, cells = comparison.quality
    assert cells[2][headings.index("against")] == better
    assert (plain.verdict, other.verdict) == ("–", "–")
    assert other.gap is not None  # to the plain one
    named = (
        compare([baseline, shifted, v3], Measure(baseline="baseline")).rows[2],
        compare([baseline, shifted, v3], Measure(baseline="oelm_v3")),
    )
    assert named[0].gap == judged.gap
    assert [row.gap is None for row in named[1].rows] == [False, False, True]


def test_a_baseline_that_shares_no_seed_is_not_the_measure_where_another_does(train: Callable[..., RunFolder]) -> None:
    others = [train("baseline"), train("oelm_v3")]
    comparison = compare([*others, train("baseline_shift", seed=1, max_lr=1e-2)])
    assert [row.reference for row in comparison.rows if row.model_type == "oelm_v3"] == ["Baseline"]
    assert [row.gap is None for row in comparison.rows if row.model_type == "oelm_v3"] == [False]


def test_what_trains_at_any_time_counts_as_trained(train: Callable[..., RunFolder]) -> None:
    rows = compare([train(), train("headwise+thaw(5)"), train("oelm_v2")]).rows
    assert [row.trained_share == 1 for row in rows] == [True, True, False]


def test_one_seed_is_said_to_be_one_seed(train: Callable[..., RunFolder]) -> None:
    comparison = compare([train("baseline"), train("oelm_v2")])
    assert comparison.rows[1].verdict == "one seed only"
    assert any("one seed per variant" in warning for warning in comparison.warnings)
    assert any("learning rate not tuned" in warning for warning in comparison.warnings)
    assert "OELM-Freeze" in str(comparison)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_steps": 12}, "tokens seen differ"),
        ({"batch_size": 4}, "tokens seen differ"),
        ({"seq_len": 16, "batch_size": 16}, "sequence length differ"),
    ],
)
def test_runs_with_different_tasks_are_refused(
    train: Callable[..., RunFolder], changes: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=f"cannot compare .*: {message}"):
        compare([train("baseline"), train("oelm_v2", **changes)])


def test_runs_on_different_data_are_refused(train: Callable[..., RunFolder]) -> None:
    one, other = train("baseline"), train("oelm_v2")
    manifest = other.manifest()
    manifest["data"]["sha256"]["train"] = "f" * 64
    manifest["run_id"] = run_id(other.config(), manifest["data"]["sha256"])
    (other.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="training data differ"):
        compare([one, other])


def test_what_is_unfair_but_comparable_is_said(train: Callable[..., RunFolder]) -> None:
    comparison = compare([train("baseline"), train("oelm_v2", max_lr=1e-3, d_ff=32)])
    text = "\n".join(comparison.warnings)
    assert "different learning rates: Baseline 0.003, OELM-Freeze 0.001" in text
    assert "differ in more than the variant: d_ff" in text


def test_what_makes_step_times_unequal_is_said(train: Callable[..., RunFolder]) -> None:
    alike = compare([train("baseline"), train("oelm_random")])
    assert not any("step times" in warning for warning in alike.warnings)
    other = train("oelm_v2", accumulation=4)
    manifest = other.manifest()
    manifest["sessions"].append({**manifest["sessions"][0], "engine": "graph"})
    (other.path / "manifest.json").write_text(json.dumps(manifest))
    unequal = compare([train("baseline"), other])
    assert unequal.warnings[-1] == (
        "step times are not comparable: Baseline ran with engine eager, accumulation 1; "
        "OELM-Freeze ran with engine eager/graph, accumulation 4"
    )
    assert [row.step_ratio is None for row in (*alike.rows, *unequal.rows)] == [False, False, True, True]


def test_variants_trained_by_different_versions_of_the_code_are_named(train: Callable[..., RunFolder]) -> None:
    one, other = train("baseline"), train("oelm_v2")

    def trained_by(folder: RunFolder, *states: Any) -> None:
        manifest = folder.manifest()
        sessions = [{**manifest["sessions"][0], "git": state} for state in states]
        (folder.path / "manifest.json").write_text(json.dumps({**manifest, "sessions": sessions}))

    first, second = {"commit": "1234567890", "changed": False}, {"commit": "abcdefabcd", "changed": True}
    said = "the variants were trained by different versions of the code: Baseline 1234567; OELM-Freeze "
    trained_by(one, first)
    trained_by(other, first, second)
    assert said + "1234567/abcdefa with changes" in compare([one, other]).warnings
    trained_by(other, None, "nonsense")
    assert any(note.startswith(said) for note in compare([one, other]).warnings)
    trained_by(other, first)
    assert not any("versions of the code" in note for note in compare([one, other]).warnings)


def test_runs_that_shared_a_device_are_said_to_have_done_so(train: Callable[..., RunFolder]) -> None:
    one, other = train("baseline"), train("oelm_v2")
    said = "step times are not comparable: some of the runs shared a device while they ran"
    assert said not in compare([one, other]).warnings  # one after the other

    def last_an_hour(folder: RunFolder, host: str) -> None:
        status = {**folder.status(), "heartbeat": time.time() + 3600, "host": host}
        (folder.path / "status.json").write_text(json.dumps(status))

    last_an_hour(one, "here")
    last_an_hour(other, "here")
    assert said in compare([one, other]).warnings
    last_an_hour(other, "elsewhere")
    assert said not in compare([one, other]).warnings
    last_an_hour(train("oelm_v2", 7, trial=True), "here")
    assert said in compare(find_runs([one.path.parent])).warnings


def test_rates_that_fall_to_another_share_are_said(train: Callable[..., RunFolder]) -> None:
    baseline = train("baseline")
    as_far, as_low = train("oelm_v2", max_lr=1e-3), train("oelm_random", max_lr=1e-3, min_lr=3e-4)
    for other in (as_far, as_low):
        assert "min_lr" not in str(compare([baseline, other]).warnings)
    for runs in ([baseline, as_far, as_low], [baseline, train("oelm_v2", min_lr=0.0)]):
        said = compare(runs).warnings
        assert any("differ in more than the variant: min_lr" in warning for warning in said)


def test_rates_found_at_another_length_are_said(train: Callable[..., RunFolder], tmp_path: Path) -> None:
    def said(steps: int) -> bool:
        trials = [train("baseline", 7, max_lr=rate, max_steps=steps, trial=True) for rate in (1e-3, 3e-3)]
        (grid := tmp_path / f"grid-{steps}").mkdir()
        for trial in trials:
            trial.path.rename(grid / trial.path.name)
        tuned = train("baseline", max_lr=choice(find_runs([grid])).best, tuned_from=str(grid))
        warnings = compare([tuned]).warnings
        return any("found in runs of another length than those that count: Baseline" in each for each in warnings)

    assert said(6)
    assert not said(10)


def test_variants_that_come_to_the_same_are_the_same(train: Callable[..., RunFolder]) -> None:
    """Of a model 32 channels wide, a quarter is 8."""
    runs = [train("baseline"), train("normal+trained+residual(8)"), train("headwise+residual(25%)")]
    comparison = compare(runs)
    assert any("with and without residual" in warning for warning in comparison.warnings)
    judged = comparison.rows[2]
    assert judged.gap is not None
    assert judged.gap.mean == pytest.approx(loss_of(runs[2]) - min(map(loss_of, runs[:2])))
    twin = train("headwise+residual(8)")
    with pytest.raises(UserError, match="leave one out"):
        compare([*runs, twin])


def test_a_name_that_has_come_to_mean_something_else_is_refused(train: Callable[..., RunFolder]) -> None:
    run = train("oelm_v3")
    manifest = run.manifest()
    (run.path / "manifest.json").write_text(json.dumps({**manifest, "variant": "headwise+lowrank(1)+shift"}))
    with pytest.raises(
        UserError, match=r"oelm_v3 was headwise\+lowrank\(1\)\+shift when the run was made, and is headwise"
    ):
        compare([run])
    with pytest.raises(UserError, match="when the run was made"):
        fit(replace(run.config(), out_dir=str(run.path), resume="auto"))


def test_seeds_without_a_partner_are_named(train: Callable[..., RunFolder]) -> None:
    runs = [train("baseline"), train("baseline", seed=1), train("oelm_v2"), train("oelm_random"), train("oelm_v2", 7)]
    comparison = compare([*runs, train("oelm_matched", seed=9)])
    headings, cells = comparison.quality
    assert headings[1] == "seeds"
    assert [row[1] for row in cells] == ["0, 1", "0, 7", "0", "9"]
    said = [warning for warning in comparison.warnings if "seed" in warning]
    assert said == [
        "the gap of OELM-Freeze is over seeds 0; seeds without a partner: 7 (OELM-Freeze); 1 (baseline)",
        "the gap of OELM-Random is over seeds 0; seeds without a partner: 1 (baseline)",
        "OELM-Matched shares no seed with the baseline: no gap can be given",
    ]


def test_the_table_says_what_the_verdict_is_about(finished: RunFolder) -> None:
    assert "PPL ≤ 1.05 ×" in str(compare([finished]))
    assert "PPL ≤ 1.1 ×" in str(compare([finished], Measure(1.1)))


def test_a_criterion_may_be_numpys(finished: RunFolder) -> None:
    criterion: Any = np.float32(1.5)
    assert "PPL ≤ 1.5 ×" in str(compare([finished], Measure(criterion)))


def test_a_run_that_diverged_is_shown_in_few_digits(finished: RunFolder) -> None:
    loss, gap = Estimate(1000.0), Estimate(995.0, 800.0, 1200.0)
    row = Row("OELM-Freeze", (read_result(finished),), loss, gap, "not met", "Baseline", 0.1, 1.0, None, None)
    _, (cells,) = Comparison((row,), (), 1.05, "a task").quality
    assert max(map(len, cells)) < 60


def test_an_unfinished_run_is_refused_by_name(train: Callable[..., RunFolder]) -> None:
    folder = train("baseline")
    status = json.loads((folder.path / "status.json").read_text())
    (folder.path / "status.json").write_text(json.dumps({**status, "state": "failed"}))
    with pytest.raises(UserError, match=r"is not finished \(failed\)"):
        compare([folder])


def test_the_same_variant_and_seed_twice_is_refused(train: Callable[..., RunFolder]) -> None:
    with pytest.raises(UserError, match="are both baseline with seed 0"):
        compare([train(), train()])


def test_a_variant_is_itself_however_it_is_written(train: Callable[..., RunFolder]) -> None:
    comparison = compare([train("normal+trained"), train("headwise"), train("oelm_v2", seed=1)])
    baseline, frozen = comparison.rows
    assert (baseline.model_type, baseline.gap) == ("baseline", None)
    assert (frozen.model_type, frozen.seeds) == ("oelm_v2", (0, 1))
    assert frozen.gap is not None
    with pytest.raises(UserError, match="are both oelm_v2 with seed 0"):
        compare([train("headwise"), train("oelm_v2")])


@pytest.mark.parametrize("criterion", [math.nan, math.inf, 0.0, -1.0, "low", None, True])
def test_a_criterion_that_is_no_number_is_refused(criterion: Any) -> None:
    with pytest.raises(UserError, match=r"--criterion .* must be a number above 0"):
        compare([], Measure(criterion))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("status.json", "{}", "state is missing"),
        ("status.json", "[]", r"content should be of type dict, not \[\]"),
        ("status.json", "null", "content is missing"),
        ("status.json", "[" * 100_000, "recursion"),
        ("manifest.json", '{"format": 2}', "run_id is missing"),
        ("manifest.json", b"\xff\xfe", "can't decode"),
        ("timing_stats.json", "{}", "median_step_time is missing"),
        ("timing_stats.json", '{"median_step_time": "fast"}', "median_step_time should be of type float, not 'fast'"),
        ("timing_stats.json", f'{{"median_step_time": {10**400}}}', "median_step_time should be of type float"),
        ("evals.jsonl", "{}\n", "step is missing"),
        ("evals.jsonl", "7\n", "content should be of type dict, not 7"),
        ("evals.jsonl", b"\xff\n", "can't decode"),
        ("evals.jsonl", "", "the final score is missing"),
        ("evals.jsonl", '{"step": 1, "final": true, "loss": "low"}\n', "loss should be of type float, not 'low'"),
    ],
)
def test_a_damaged_file_is_named(finished: RunFolder, file: str, content: str | bytes, message: str) -> None:
    path = finished.path / file
    before = path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=rf"{file}(, line 1)? is damaged: .*{message}"):
        compare([finished])
    path.write_bytes(before)


def test_a_model_without_parameters_is_damage(finished: RunFolder) -> None:
    path = finished.path / "manifest.json"
    before = path.read_text()
    manifest = json.loads(before)
    path.write_text(json.dumps({**manifest, "parameters": {"total": 0, "trainable": 0, "frozen": 0}}))
    with pytest.raises(UserError, match=r"manifest.json is damaged: a model has parameters"):
        compare([finished])
    path.write_text(before)


def test_folders_of_runs_are_searched(train: Callable[..., RunFolder], tmp_path: Path) -> None:
    runs = [train("baseline"), train("oelm_v2")]
    assert {run.path for run in find_runs([tmp_path])} == {run.path for run in runs}
    with pytest.raises(UserError, match="is no run folder"):
        find_runs([tmp_path / "nothing"])


def test_the_command_prints_the_table(train: Callable[..., RunFolder]) -> None:
    runs = [train("baseline"), train("oelm_v2")]
    result = oelm("compare", *(str(run.path) for run in runs))
    assert result.returncode == 0, result.stderr
    assert "OELM-Freeze" in result.stdout


def test_rates_of_one_variant_are_rows_of_their_own_and_the_best_baseline_is_the_measure(
    train: Callable[..., RunFolder],
) -> None:
    runs = [train(max_lr=rate) for rate in (1e-4, 1e-2)] + [train("oelm_v2", max_lr=1e-3)]
    comparison = compare(runs)
    assert [row.title for row in comparison.rows] == [
        "Baseline (max_lr 0.0001)",
        "Baseline (max_lr 0.01)",
        "OELM-Freeze",
    ]
    weak, strong, frozen = comparison.rows
    assert strong.gap is None
    assert weak.gap is not None
    assert frozen.gap is not None
    assert frozen.gap.mean == pytest.approx(frozen.loss.mean - strong.loss.mean)
    better = 100 * (1 - math.exp(strong.loss.mean - weak.loss.mean))
    assert f"baseline at 0.0001 is not tuned: a run at 0.01 is {better:.1f} % better" in comparison.warnings


def test_a_worse_baseline_that_was_run_more_often_is_not_the_measure(train: Callable[..., RunFolder]) -> None:
    weak = [train(seed=seed, max_lr=1e-4) for seed in (0, 1)]
    comparison = compare([*weak, train(max_lr=1e-2), train("oelm_v2", max_lr=1e-2)])
    measured, strong, frozen = comparison.rows
    assert strong.gap is None
    assert frozen.gap is not None
    assert frozen.gap.mean == pytest.approx(frozen.loss.mean - strong.loss.mean)
    assert (measured.is_baseline, measured.verdict) == (True, "–")


def test_what_was_scored_on_the_test_split_is_another_task(train: Callable[..., RunFolder]) -> None:
    on_test = [train(final_split="test"), train("oelm_v2", final_split="test")]
    assert "tokens of test" in compare(on_test).task
    assert compare(on_test).quality[0][2] == "test loss"
    with pytest.raises(UserError, match=r"scored split differ \(test .* against val "):
        compare([*on_test, train("oelm_random")])


def test_any_variant_may_be_the_baseline(train: Callable[..., RunFolder]) -> None:
    runs = [train("baseline"), train("headwise"), train("oelm_random")]
    comparison = compare(runs, Measure(baseline="oelm_v2"))
    gaps = {row.model_type: row.gap for row in comparison.rows}
    assert gaps["oelm_v2"] is None
    assert gaps["baseline"] is not None
    assert gaps["baseline"].mean == pytest.approx(loss_of(runs[0]) - loss_of(runs[1]))
    assert "the baseline of this comparison is OELM-Freeze" in comparison.warnings
    with pytest.raises(UserError, match="did you mean oelm_v2"):
        Measure(baseline="oelm_v22")


def test_the_time_to_the_baselines_loss_is_that_of_the_first_validation_as_good(
    train: Callable[..., RunFolder],
) -> None:
    baseline, frozen = train(val_interval=2), train("oelm_v2", val_interval=2)
    scores = [json.loads(line) for line in baseline.evals.read_text().splitlines()]
    lines = [json.loads(line) for line in frozen.evals.read_text().splitlines()]
    target = [score["loss"] for score in scores if not score["final"]][-1]
    for line, loss in zip(lines, (target + 1, target + 0.1, target, target - 1, target - 2, target), strict=True):
        line["loss"] = loss
    frozen.evals.write_text("".join(json.dumps(line) + "\n" for line in lines))
    row = compare([baseline, frozen]).rows[1]
    assert row.seconds_to_baseline == lines[2]["elapsed"]
    timed = compare([baseline, frozen])
    assert "as good after" in timed.quality[0]
    assert "as good after" in timed.notes[0]
    manifest = frozen.manifest()
    manifest["sessions"][0]["cpu_threads"] = 64
    (frozen.path / "manifest.json").write_text(json.dumps(manifest))
    untimed = compare([baseline, frozen])  # on another machine, seconds say nothing
    assert "as good after" not in untimed.quality[0]
    assert "as good after" not in str(untimed)


def test_everything_in_a_folder_is_compared_task_by_task_and_what_is_not_finished_is_named(
    train: Callable[..., RunFolder], tmp_path: Path
) -> None:
    runs = [train(), train("oelm_v2"), train(max_steps=5), train("oelm_random")]
    broken = runs[-1].path
    (broken / "evals.jsonl").write_text("{")
    (broken / "status.json").write_text("{}")
    large, small = compare_all(find_runs([tmp_path]))
    assert [row.title for row in large.rows] == ["Baseline", "OELM-Freeze"]
    assert [row.title for row in small.rows] == ["Baseline"]
    (left_out,) = large.left_out
    assert left_out.folder.path == broken
    assert "status.json is damaged" in str(large)
    result = oelm("compare", "--all", str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert "left out: " in result.stdout


def test_runs_that_served_to_find_a_rate_are_not_judged(train: Callable[..., RunFolder], tmp_path: Path) -> None:
    trials = [train(seed=9, max_lr=rate, out_dir=str(tmp_path / "grid" / f"{rate}")) for rate in (1e-3, 1e-2)]
    tuned = train(max_lr=1e-2, tuned_from=str(tmp_path / "grid"))
    comparison = compare([*trials, tuned, train("oelm_v2", max_lr=1e-2)])
    assert [(row.title, row.seeds) for row in comparison.rows] == [("Baseline", (0,)), ("OELM-Freeze", (0,))]
    said = "\n".join(comparison.warnings)
    assert "2 runs that served to find a learning rate are not counted" in said
    assert "learning rate not tuned for: OELM-Freeze" in said
    assert "best learning rate at the edge of its grid, so a better one may lie beyond: Baseline" in said
    assert "unequal tuning budgets: 0, 20 steps" in said


def test_a_trial_is_not_judged_though_nothing_has_been_made_of_it_yet(train: Callable[..., RunFolder]) -> None:
    trials = [train(seed=1000, max_lr=rate, trial=True) for rate in (1e-3, 1e-2)]
    (comparison,) = compare_all([*trials, train()])
    assert [(row.title, row.seeds) for row in comparison.rows] == [("Baseline", (0,))]
    assert "2 runs that served to find a learning rate are not counted" in comparison.warnings
    for judge in (compare, compare_all):
        with pytest.raises(UserError, match=r"nothing to judge|no run that counts"):
            judge(trials)
