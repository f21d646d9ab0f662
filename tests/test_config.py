"""Configuration: precedence, identity, and errors that help."""

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from oelm.arguments import RunFlags, run_config
from oelm.config import RunConfig, run_id
from oelm.errors import UserError

ORIGINAL_FLAGS = """--model_type oelm_v2 --vocab_size 50257 --d_model 512 --num_layers 6 --num_heads 8 --d_ff 2048
--seq_len 512 --dropout 0.1 --dataset tinystories --data_path d --max_steps 100000 --batch_size 8 --max_lr 1e-3
--min_lr 0 --warmup_steps 1000 --beta1 0.9 --beta2 0.999 --weight_decay 0.01 --grad_clip 1.0 --val_interval 1000
--save_interval 5000 --out_dir o --resume auto --seed 42 --num_workers 4 --use_amp""".split()


FLOATS = [name for name, kind in get_type_hints(RunConfig).items() if kind in (float, float | None)]


def test_later_layers_win(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("d_model: 96\nmax_lr: 1e-4\nbatch_size: 4\n")
    config = RunConfig(file, recipe="study", preset="mini", batch_size=2)
    assert config.beta2 == 0.999  # the recipe over the default
    assert config.num_layers == 4  # the preset
    assert config.d_model == 96  # the file over the preset
    assert config.max_lr == 1e-4  # the file over the recipe; YAML itself reads 1e-4 as a string
    assert config.batch_size == 2  # what is given over the file


def test_the_defaults_are_those_of_the_default_preset() -> None:
    assert all(getattr(RunConfig(), field.name) == field.default for field in fields(RunConfig))


def test_a_preset_and_a_recipe_are_what_they_say_however_a_configuration_is_made() -> None:
    config = RunConfig(preset="medium-512", recipe="study")
    assert (config.d_model, config.num_layers, config.dropout, config.seed) == (512, 6, 0.1, 42)
    assert config.with_fields(max_steps=2000, preset="medium-512").d_model == 512
    for layer in ({"preset": "nano"}, {"recipe": "fair"}):
        with pytest.raises(UserError, match=r"the configuration of baseline already fixes .* could not take effect"):
            config.with_fields(**layer)
    with pytest.raises(UserError, match=r"unknown field 'max_step': did you mean max_steps\?"):
        config.with_fields(max_step=3)


def test_a_flag_mends_what_the_lower_layers_got_wrong(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("recipe: study\nmax_steps: 50\n")
    _, config = run_config(RunFlags, ["--config", str(file), "--warmup_steps", "5"], "oelm train")
    assert (config.max_steps, config.warmup_steps) == (50, 5)


def test_flags_win_over_file_preset_and_recipe(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("d_ff: 100\nseq_len: 50\n")
    arguments = ["--config", str(file), "--preset=mini", "--recipe", "study", "--seq-len", "60", "--max_lr", "5e-4"]
    _, config = run_config(RunFlags, arguments, "oelm train")
    assert (config.d_model, config.d_ff, config.seq_len, config.max_lr) == (256, 100, 60, 5e-4)
    assert (config.recipe, config.preset, config.dropout) == ("study", "mini", 0.1)


@pytest.mark.parametrize("separator", ["_", "-"])
def test_the_original_flags_work_as_they_are(separator: str) -> None:
    flags = ["--" + flag[2:].replace("_", separator) if flag[:2] == "--" else flag for flag in ORIGINAL_FLAGS]
    _, config = run_config(RunFlags, flags, "oelm train")
    assert config.model_type == "oelm_v2"
    assert config.num_workers == 4
    assert config.max_lr == 1e-3


def test_the_study_is_the_originals_settings() -> None:
    study = RunConfig(recipe="study", preset="medium-512", max_steps=100_000).resolved(50257)
    assert (study.batch_size, study.dropout, study.beta1, study.beta2) == (8, 0.1, 0.9, 0.999)
    assert (study.weight_decay, study.decay, study.grad_clip) == (0.01, "all", 1.0)
    assert (study.warmup_steps, study.min_lr, study.use_amp, study.amp_dtype) == (1000, 0.0, True, "fp16")
    assert (study.val_tokens, study.val_interval, study.save_interval, study.seed) == (None, 1000, 5000, 42)


def test_fair_is_the_modern_defaults() -> None:
    fair = RunConfig(recipe="fair", max_steps=20_000, max_lr=1e-3).resolved(50257)
    assert (fair.dropout, fair.beta1, fair.beta2, fair.weight_decay) == (0.0, 0.9, 0.95, 0.1)
    assert (fair.decay, fair.grad_clip, fair.warmup_steps, fair.amp_dtype) == ("matrices", 1.0, 400, "bf16")
    assert fair.min_lr == pytest.approx(1e-4)
    assert RunConfig(max_steps=1000).resolved(1).warmup_steps == 100
    assert [RunConfig(max_steps=n).resolved(1).val_interval for n in (5, 200, 10_000)] == [1, 20, 500]


def test_yaml_survives_being_written_and_read(tmp_path: Path) -> None:
    config = RunConfig(preset="mini", model_type="oelm_v2", min_lr=1e-5, val_tokens=None, seed=7)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    assert RunConfig(tmp_path / "config.yaml") == config


def test_identity_changes_with_what_changes_the_result_and_with_nothing_else() -> None:
    config = RunConfig()
    hashes = {"train": "a", "val": "b"}
    assert run_id(config, hashes) == run_id(replace(config, out_dir="x", device="cpu", log_interval=3), hashes)
    assert run_id(config, hashes) != run_id(replace(config, max_lr=2e-3), hashes)
    assert run_id(config, hashes) != run_id(config, {**hashes, "train": "c"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_heads": 5}, r"--num_heads 5 does not divide --d_model 64; nearest head counts that do: 2, 4, 8"),
        ({"preset": "medium512"}, "did you mean medium-512"),
        ({"recipe": "fare"}, "did you mean fair"),
        ({"model_type": "oelm_vv2"}, "did you mean oelm_v2"),
        ({"positions": "rop"}, "did you mean rope"),
        ({"max_stesp": 5}, "did you mean max_steps"),
        ({"max_steps": 0}, "--max_steps 0 is out of range"),
        ({"max_lr": -1.0}, "--max_lr -1.0 is out of range"),
        *(({name: bad}, f"--{name} {bad} is out of range") for name in FLOATS for bad in (math.nan, math.inf)),
        ({"batch_size": 10**8}, "must lie between 1 and 10,000,000$"),
        ({"d_model": "64"}, "d_model must be a whole number, not '64'"),
        ({"d_model": 64.0}, "d_model must be a whole number, not 64.0"),
        ({"use_amp": 1}, "use_amp must be true or false, not 1"),
        ({"model_type": None}, "model_type must be text, not None"),
        ({"max_lr": 10**400}, "max_lr must be a number, not 1000"),
        ({"max_steps": 500, "recipe": "study"}, r"--warmup_steps 1000 \(as recipe study has it\) is more than"),
        ({"model_type": "headwise+trained+trained"}, "says when it trains twice"),
        ({"model_type": "headwise+thin(3)"}, r"thin\(3\) does not divide the 32 channels of a head"),
        ({"model_type": "headwise+thin(32)"}, "even number of channels per head of Q and K"),
        ({"model_type": "headwise+layers(1-2)"}, "layer 2 is beyond the last one, 1"),
        ({"model_type": "headwise+heads(10%)"}, "10 % of 2 heads is none of them"),
        ({"model_type": "headwise+heads(90%)"}, "90 % of 2 heads is all of them"),
        ({"model_type": "headwise+residual(65)"}, "rank 65 is wider than the model, 64"),
        ({"model_type": "normal+freeze(10-1000)"}, "nothing to freeze at step 1,000"),
        ({"model_type": "normal+every(1000)"}, "of 1,000 steps, every\\(1000\\) would update it in the first alone"),
        ({"layer_lr": 0.5, "num_layers": 1}, "--layer_lr 0.5 has no effect on a single layer"),
        ({"model_type": "headwise+bias", "positions": "learned"}, "no effect without --positions rope"),
        ({"dropout": 1.0}, "--dropout 1.0 is out of range"),
        ({"seq_len": -3}, "--seq_len -3 is out of range"),
        ({"min_lr": 1.0}, "--min_lr 1 is above --max_lr"),
        ({"warmup_steps": 2000}, "--warmup_steps 2000 is more than --max_steps 1000"),
        ({"accumulation": 3}, "--accumulation 3 does not divide --batch_size 16"),
        ({"device": "gpu"}, "--device gpu is unknown"),
        ({"device": "0"}, "--device 0 is unknown"),
        ({"d_model": 6, "num_heads": 2, "positions": "rope"}, "even number of channels per head"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RunConfig(**given)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("d_modle: 5", "did you mean d_model"),
        ("d_model: wide", "d_model in .* must be a whole number, not 'wide'"),
        ("use_amp: 3", "use_amp in .* must be true or false, not 3"),
        ("- a list", "'field: value' lines"),
        ("a: [", "not readable YAML"),
        ("a: " + "[" * 5000, "not readable YAML"),
        ("d_model: 2020-13-45", "not readable YAML"),
        ("d_model: 64\nseed: 1\nd_model: 32", "sets d_model more than once"),
        ("1: 64", "unknown field 1 in "),
        ("max_lr: fast", "max_lr in .* must be a number, not 'fast'"),
    ],
)
def test_a_wrong_file_names_itself_and_the_field(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        RunConfig(file)
    assert "run.yaml" in str(error.value)


def test_a_keyword_may_be_a_path_or_a_whole_number() -> None:
    config = RunConfig(out_dir=Path("x"), max_lr=1)
    assert config.out_dir == "x"
    assert type(config.max_lr) is float


def test_the_wish_to_resume_is_not_kept_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(RunConfig(resume="never").to_yaml())
    assert RunConfig(tmp_path / "config.yaml").resume == "auto"


def test_a_flag_that_the_file_overrules_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("preset: nano\n")
    with pytest.raises(UserError, match="already fixes preset: nano"):
        RunConfig(file, preset="mini")


def test_numbers_may_be_numpys() -> None:
    given: dict[str, Any] = {"max_lr": np.float64(1e-2), "dropout": np.float32(0.5), "seed": np.int64(7)}
    config = RunConfig(**given)
    assert (config.max_lr, config.dropout, config.seed) == (0.01, 0.5, 7)
    assert {type(getattr(config, name)) for name in given} == {float, int}
    assert RunConfig(**given).to_yaml() == RunConfig(max_lr=0.01, dropout=0.5, seed=7).to_yaml()


def test_words_and_truths_may_be_numpys() -> None:
    given: dict[str, Any] = {"model_type": np.str_("oelm_v2"), "use_amp": np.bool_(False)}
    config = RunConfig(**given)
    assert config.to_yaml() == RunConfig(model_type="oelm_v2", use_amp=False).to_yaml()


@pytest.mark.parametrize("name", ["d_model", "max_lr"])
def test_yes_is_no_number(name: str) -> None:
    given: dict[str, Any] = {name: True}
    with pytest.raises(UserError, match=f"{name} must be a (whole )?number, not True"):
        RunConfig(**given)


def test_an_id_depends_on_what_differs_from_the_defaults_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a field that a later version adds leaves the ids of older runs as they are; this one is of the first."""
    config = RunConfig(model_type="oelm_v2", max_lr=2e-3).resolved(1024)
    assert run_id(config, {"train": "a", "val": "b"}) == "f6206aaa65000e1c"
    identity = RunConfig.identity
    monkeypatch.setattr(RunConfig, "identity", lambda self: {**identity(self), "device": RunConfig.device})
    assert run_id(config, {"train": "a", "val": "b"}) == "f6206aaa65000e1c"


@pytest.mark.parametrize("name", ["", "../x", "/data/x", ".hidden", "a/b"])
def test_a_path_is_no_name_of_a_corpus(name: str) -> None:
    with pytest.raises(UserError, match="for the folder of a corpus use --data_path"):
        RunConfig(dataset=name)


def test_runs_on_a_folder_are_named_after_it() -> None:
    assert RunConfig(data_path="elsewhere/wiki").run_folder == Path("outputs/wiki-nano/baseline/seed-0")


def test_values_are_made_their_fields_type_or_refused() -> None:
    assert RunConfig(max_lr=1).to_yaml() == RunConfig(max_lr=1.0).to_yaml()
    with pytest.raises(UserError, match="max_steps must be a whole number, not '5'"):
        RunConfig(max_steps="5")
