"""What there is to run: the study to the letter, and matrix files whose mistakes are named by line and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oelm.errors import UserError
from oelm.runs.matrix import EXPERIMENTS, REPORTED, Arm, arms_of, overrides, read_matrix

STUDY = {
    "GPT-01": ("tinystories", "baseline", 3e-4, 100_000),
    "GPT-02": ("tinystories", "oelm_v2", 1e-3, 100_000),
    "GPT-03": ("tinystories", "oelm_random", 1e-3, 100_000),
    "GPT-04": ("openwebtext", "baseline", 3e-4, 150_000),
    "GPT-05": ("openwebtext", "oelm_v2", 1e-3, 150_000),
    "GPT-06": ("wikitext103", "baseline", 3e-4, 200_000),
    "GPT-07": ("wikitext103", "oelm_v2", 1e-3, 200_000),
}


def arms(*names: str, seeds: int | None = None, **changes: Any) -> list[Arm]:
    return arms_of(names, Path("outputs"), Path("data"), seeds, changes)


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    for corpus in ("wiki", "reviews", "storybook"):
        (tmp_path / "data" / corpus).mkdir(parents=True)
        (tmp_path / "data" / corpus / "meta.json").touch()
    path = tmp_path / "mine.yaml"
    path.write_text(
        "variants: [baseline, headwise+trained]\n"
        "corpora: [wiki, reviews]\n"
        "learning_rates: [5e-4, 1e-3]\n"
        "seeds: 2\n"
        "tuning: {steps: 200}\n"
        "settings:\n"
        "  preset: mini\n"
        "  max_steps: 1000\n"
    )
    return path


def read(path: Path, seeds: int | None = None, **changes: Any) -> list[Arm]:
    return read_matrix(path, Path("outputs"), path.parent / "data", seeds, changes)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_study_is_run_to_the_letter(name: str) -> None:
    config = EXPERIMENTS[name]()
    assert (config.dataset, config.model_type, config.max_lr, config.max_steps) == STUDY[name]
    study = (config.recipe, config.preset, config.batch_size, config.dropout, config.beta2, config.weight_decay)
    assert study == ("study", "medium-512", 8, 0.1, 0.999, 0.01)
    assert (config.warmup_steps, config.min_lr, config.seed, config.val_interval) == (1000, 0.0, 42, 1000)


def test_a_rehearsal_of_the_study_is_validated_ten_times() -> None:
    assert EXPERIMENTS["GPT-01"](max_steps=2000).val_interval == 200
    assert EXPERIMENTS["GPT-01"](max_steps=2000, val_interval=700).val_interval == 700


def test_all_means_the_seven() -> None:
    assert [arm.experiment for arm in arms("all", "GPT-01")] == list(STUDY)
    assert REPORTED.keys() == STUDY.keys() - {"GPT-06", "GPT-07"}


def test_an_experiment_has_a_folder_per_arm_and_seed() -> None:
    (arm,) = arms("GPT-02", seeds=3, max_steps=5000)
    runs = arm.runs(arm.rates[0])
    assert not arm.trials()
    assert [str(run.run_folder) for run in runs] == [f"outputs/GPT-02/oelm_v2/seed-{seed}" for seed in (42, 43, 44)]
    assert [run.seed for run in runs] == [42, 43, 44]
    assert {run.max_steps for run in runs} == {5000}
    assert runs[0].data_folder == Path("data/tinystories")


def test_overrides_are_read_as_yaml_has_them() -> None:
    given = overrides(["max_steps=2000", "val-tokens=null", "max_lr=1e-3", "use_amp=false", "track=wandb"])
    config = EXPERIMENTS["GPT-01"](**given)
    assert (config.max_steps, config.val_tokens, config.max_lr) == (2000, None, 1e-3)
    assert (config.use_amp, config.track) == (False, "wandb")


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        ([], {}, "name an experiment: GPT-01"),
        (["GPT-1"], {}, "did you mean GPT-01"),
        (["nowhere.yaml"], {}, "nowhere.yaml: no such file"),
        (["GPT-01"], {"max_step": 5}, "did you mean max_steps"),
        (["GPT-01"], {"model_type": "oelm_v2"}, "--set model_type: an experiment sets that itself"),
        (["GPT-01"], {"out_dir": "x"}, "--out-dir says where all runs go"),
        (["GPT-01"], {"max_steps": 0}, "out of range"),
    ],
)
def test_what_cannot_be_run_is_named(names: list[str], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        arms(*names, **changes)


@pytest.mark.parametrize("setting", ["max_steps", "max_steps=[", "=5"])
def test_an_override_that_is_none_is_named(setting: str) -> None:
    with pytest.raises(UserError, match=r"--set|unknown field"):
        arms("GPT-01", **overrides([setting]))


@pytest.mark.parametrize("seeds", [0, -1, 10**6])
def test_a_number_of_seeds_that_cannot_be_meant_is_refused(seeds: int) -> None:
    with pytest.raises(UserError, match=r"--seeds .* must lie between"):
        arms("GPT-01", seeds=seeds)


def test_a_matrix_is_variants_times_corpora_times_seeds_after_a_grid_of_equal_length(matrix: Path) -> None:
    found = read(matrix)
    assert [str(arm.folder) for arm in found] == [
        "outputs/mine/wiki/baseline",
        "outputs/mine/wiki/headwise+trained",
        "outputs/mine/reviews/baseline",
        "outputs/mine/reviews/headwise+trained",
    ]
    for arm in found:
        trials, runs = arm.trials(), arm.runs(1e-3)
        assert [(trial.max_lr, trial.max_steps, trial.seed) for trial in trials] == [
            (5e-4, 200, 1000),
            (1e-3, 200, 1000),
        ]
        assert [(run.max_lr, run.max_steps, run.seed) for run in runs] == [(1e-3, 1000, 0), (1e-3, 1000, 1)]
        assert {run.tuned_from for run in runs} == {str(trials[0].run_folder.parent)}
        assert {run.preset for run in (*trials, *runs)} == {"mini"}
        assert len({run.run_folder for run in (*trials, *runs)}) == 4


def test_one_rate_is_taken_as_it_is(matrix: Path) -> None:
    matrix.write_text("variants: baseline\nlearning_rates: 2e-3\nseeds: [3, 5]\n")
    (arm,) = read(matrix)
    assert not arm.trials()
    assert [(run.seed, run.max_lr, run.tuned_from) for run in arm.runs(2e-3)] == [(3, 2e-3, None), (5, 2e-3, None)]
    assert str(arm.folder) == "outputs/mine/baseline"


def test_flags_go_above_a_matrix(matrix: Path) -> None:
    arm = read(matrix, seeds=1, max_steps=500)[0]
    assert [run.max_steps for run in arm.runs(1e-3)] == [500]
    with pytest.raises(UserError, match=r"--set max_lr: .*mine.yaml sets that, under learning_rates"):
        read(matrix, max_lr=1e-3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds: 2", "seed: 2", "line 4, seed: there is no such field; did you mean seeds"),
        ("seeds: 2", "seeds: many", "line 4, seeds: must be a number of seeds"),
        ("seeds: 2", "seeds: [1, 1]", "line 4, seeds: must be"),
        ("headwise+trained", "headwize", "line 1, variants: unknown variant 'headwize': did you mean headwise"),
        ("headwise+trained", "baseline", "line 1, variants: something stands there twice"),
        ("headwise+trained", "3", "line 1, variants: 3 is not a name"),
        ("headwise+trained", "normal+trained", "line 1, variants: normal+trained is the same as baseline"),
        ("baseline, headwise+trained", "headwise+lowrank(64), headwise+lowrank(25%)", "lowrank(25%) is the same as"),
        ("[5e-4, 1e-3]", "1e-3", "line 5, tuning: of a single learning rate nothing is tuned"),
        ("[baseline, headwise+trained]", "&a [baseline, *a]", "an alias (*) stands within its own anchor (&)"),
        ("reviews]", "../data/wiki]", "line 2, corpora: '../data/wiki' is not the name of a prepared corpus"),
        ("reviews]", "tinystories]", "line 2, corpora: there is no prepared corpus"),
        ("seeds: 2", "name: all", "line 4, name: 'all' cannot be the name of a matrix"),
        ("1e-3]", "fast]", "line 3, learning_rates: 'fast' is not a number above 0"),
        ("1e-3]", "1e9]", "line 3, learning_rates: --max_lr 1000000000.0 is out of range"),
        ("steps: 200", "step: 200", "line 5, tuning: there are steps and seed, not step"),
        ("steps: 200", "steps: no", "line 5, tuning: steps must be a whole number"),
        ("steps: 200", "seed: 1", "line 5, tuning: seed 1 is among the seeds that count"),
        ("preset: mini", "preset: tiny", "line 7, settings: unknown preset 'tiny'"),
        ("preset: mini", "num_heads: 7", "line 7, settings: --num_heads 7 does not divide"),
        ("preset: mini", "seed: 7", "line 7, settings: seed does not belong here but under seeds"),
        ("preset: mini", "presett: mini", "line 7, settings: unknown field 'presett': did you mean preset"),
        ("  preset: mini\n", "", "nothing"),
        ("max_steps: 1000", "max_steps: some", "line 8, settings: max_steps must be a whole number, not 'some'"),
        ("  max_steps: 1000", "  preset: nano", "line 8: preset stands there twice"),
        ("variants: [", "variants: [[", "line 2"),
        ("variants: [baseline, headwise+trained]", "", "variants: is missing"),
        ("settings:\n", "settings: 5\nrest:\n", "line 7, rest: there is no such field"),
        ("seeds: 2", "name: GPT-01", "line 4, name: 'GPT-01' cannot be the name of a matrix"),
    ],
)
def test_a_mistake_is_named_by_line_and_field(matrix: Path, old: str, new: str, message: str) -> None:
    text = matrix.read_text()
    assert old in text
    matrix.write_text(text.replace(old, new, 1))
    if message == "nothing":
        read(matrix)
        return
    with pytest.raises(UserError) as error:
        read(matrix)
    assert str(error.value).startswith(str(matrix))
    assert message in str(error.value)


@pytest.mark.parametrize("content", [b"", b"- a\n", b"5", b"\xff\xfe\x00", b"[" * 5000, b"1: 2\n"])
def test_what_is_no_matrix_is_named(matrix: Path, content: bytes) -> None:
    matrix.write_bytes(content)
    with pytest.raises(UserError, match=r"mine\.yaml"):
        read(matrix)
