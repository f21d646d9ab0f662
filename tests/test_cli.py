"""The command line: helps that read well, verbs that are found, numbers that are right."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from oelm import __version__, cli
from oelm.config import RunConfig
from tests.conftest import oelm


def test_help_lists_every_verb() -> None:
    result = oelm("--help")
    assert result.returncode == 0
    for verb in cli.VERBS:
        assert f"  {verb} " in result.stdout


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_a_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([verb, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: oelm {verb}" in text
    assert len(text.splitlines()) > 8


def test_every_flag_of_train_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for field in fields(RunConfig):
        assert f"--{field.name}" in text
    assert "FLOAT (default" not in text  # a flag without a word of help
    assert "INT (default" not in text
    assert "STR (default" not in text


def test_the_defaults_in_the_help_are_those_of_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--preset", "medium-512", "--help"])
    assert "Width of the residual stream. (default: 512)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["trian"], 2, "did you mean train"),
        (["info", "--preset", "medium"], 2, "did you mean medium-512"),
        (["compare"], 2, "name at least one run folder"),
        (["sample", "nowhere"], 2, "nowhere is no run folder"),
        (["prepare", "wikitext"], 2, "did you mean wikitext103"),
        (["info", "--dataset", "storybok"], 2, "did you mean storybook"),
        (["info", "--d_modle", "4"], 2, "--d_model"),
    ],
)
def test_mistakes_get_a_line_and_a_code(arguments: list[str], code: int, message: str, tmp_path: Path) -> None:
    result = oelm(*arguments, cwd=tmp_path)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_version() -> None:
    assert oelm("--version").stdout == f"oelm {__version__}\n"


def test_info_says_what_freezing_medium_512_saves(tmp_path: Path) -> None:
    arguments = ["info", "--preset", "medium-512", "--model_type", "oelm_v2", "--batch_size", "8"]
    content = json.loads(oelm(*arguments, "--json", cwd=tmp_path).stdout)
    assert content["parameters"] == {"total": 44_896_768, "trainable": 41_751_040, "frozen": 3_145_728}
    assert content["flops_per_step"]["total"] == sum(content["flops_per_step"]["by_part"].values())
    assert content["optimizer_bytes"] == 8 * 41_751_040
    assert content["freezing_saves"]["optimizer_bytes"] == 8 * 3_145_728
    text = oelm(*arguments, cwd=tmp_path).stdout
    for figure in ("44,896,768", "41,751,040", "3,145,728", "LM head"):
        assert figure in text


def test_info_without_a_vocabulary_takes_the_corpus_s(tmp_path: Path) -> None:
    total = json.loads(oelm("info", "--json", cwd=tmp_path).stdout)["parameters"]["total"]
    assert total < 300_000
    other = json.loads(oelm("info", "--dataset", "tinystories", "--json", cwd=tmp_path).stdout)["parameters"]["total"]
    assert other > 3_000_000
    named = oelm("info", "--dataset", "not-prepared", "--vocab_size", "1024", "--json", cwd=tmp_path)
    assert json.loads(named.stdout)["parameters"]["total"] == total
