"""The command line: helps that read well, verbs that are found, numbers that are right."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from oelm import __version__, cli, variants
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


@pytest.mark.parametrize("verb", cli.VERBS)
def test_no_sentence_of_a_help_is_broken_before_its_line_is_full(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    boxed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│ ")]
    for line, following in itertools.pairwise(boxed):
        if line[2] == following[2] == " ":  # both are what is said of an argument
            word = following.strip("│ ").partition(" ")[0]
            assert len(line.rstrip("│ ")) + len(word) + 1 > len(line) - 2, f"{line}\n{following}"
    assert not any("{None}" in line for line in boxed)


def test_every_flag_of_train_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for field in fields(RunConfig):
        assert f"--{field.name}" in text
    assert "FLOAT (default" not in text  # a flag without a word of help
    assert "INT (default" not in text
    assert "STR (default" not in text


def test_the_help_of_model_type_names_every_variant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    (line,) = re.findall(r"Variant: (.*?), or a spec", text)
    assert set(line.split(", ")) == variants.NAMED.keys()


@pytest.mark.parametrize("verb", ["sample", "compare", "audit"])
def test_runs_are_said_to_be_required(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "RUN [RUN ...] Run folders, or folders with run folders below them. (required)" in text
    assert "STR [STR" not in text
    assert "(default: )" not in text


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
        (["prepare"], 2, "missing from oelm prepare: NAME"),
        (["prepare", "mine", "--source"], 2, "--source names no file or folder"),
        (
            ["info", "--d_modle", "4"],
            2,
            "unrecognized options: --d_modle, 4; did you mean --d_model? See oelm info --help",
        ),
        (["info", "--d_model", "wide"], 2, "error parsing --d_model: 'wide' is not a whole number. See"),
        (["info", "--max_lr", "low"], 2, "error parsing --max_lr: 'low' is not a number. See"),
        (["info", "--min_lr", "low"], 2, "error parsing --min_lr: 'low' is not a number. See"),
        (["prepare", "x", "--max-tokens", "1e6"], 2, "error parsing --max-tokens: '1e6' is not a whole number. See"),
        (["info", "--d_model"], 2, "missing value for argument '--d_model'"),
        (["info", "--preset"], 2, "missing value for argument '--preset'"),
        (["info", "--preset=mni"], 2, "did you mean mini"),
        (["train", "--config"], 2, "missing value for argument '--config'"),
        (["sample", "run", "--temprature", "1"], 2, "did you mean --temperature?"),
        (["sample", "run", "--temperature", "nan"], 2, "--temperature nan must be 0, or"),
        (["info", "--dataset", "storybok"], 2, "did you mean storybook"),
    ],
)
def test_mistakes_get_a_line_and_a_code(
    arguments: list[str],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == code
    said = capsys.readouterr().err
    assert said.startswith("oelm: ")
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("environment", [{"RANK": "x"}, {"WORLD_SIZE": "-1"}, {"RANK": "3"}])
def test_an_environment_that_makes_no_sense_is_named(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        cli.main(["train"])
    assert end.value.code == 2
    assert "oelm: {}={} in the environment is not".format(*next(iter(environment.items()))) in capsys.readouterr().err


def test_only_the_first_of_several_processes_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, speaks in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit):
            cli.main(["trian"])
        assert ("unknown verb" in capsys.readouterr().err) == speaks


def cuda_is_full() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has …")


@pytest.mark.parametrize("allocate", [lambda: torch.empty(2**58), lambda: np.empty(2**58), cuda_is_full])
def test_out_of_memory_is_a_failed_run_with_advice(
    allocate: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.VERBS, "train", (lambda arguments: print(allocate()), ""))
    with pytest.raises(SystemExit) as end:
        cli.main(["train"])
    assert end.value.code == 1
    assert "a smaller --batch_size or a larger --accumulation" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_line_is_the_same_whatever_a_terminal_can_show(encoding: str) -> None:
    result = oelm("info", "--d_modle", "4", PYTHONIOENCODING=encoding)
    line = "oelm: unrecognized options: --d_modle, 4; did you mean --d_model? See oelm info --help\n"
    assert (result.returncode, result.stdout, result.stderr) == (2, "", line)


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["info", "--d_modle", "4", "--debug"])
    assert end.value.code == 2
    assert "Traceback" in capsys.readouterr().err


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


def test_a_reader_who_leaves_early_is_met_quietly() -> None:
    """As in `oelm --help | head -1`, whatever Python keeps in its buffers."""
    for unbuffered in ("", "1"):
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run(
            [sys.executable, "-m", "oelm", "--help"],
            stdout=writer,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
        os.close(writer)
        assert (result.returncode, result.stderr) == (1, b"")


def test_a_full_disk_behind_the_output_gets_a_line() -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run([sys.executable, "-m", "oelm", "--help"], stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 2
    assert result.stderr == b"oelm: no space left on the disk (while writing); free some and run it again\n"


STOPPED_EARLY = """
import os, runpy, signal, sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "tyro":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Stop())
sys.argv = ["oelm", "--version"]
runpy.run_module("oelm", run_name="__main__")
"""


def test_ctrl_c_while_it_is_being_loaded_gets_a_line() -> None:
    result = subprocess.run([sys.executable, "-c", STOPPED_EARLY], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "oelm: interrupted\n")


def test_the_command_begins_where_that_is_met() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"oelm": "oelm.__main__:main"}


def test_sigterm_is_met_only_while_a_command_runs(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_that_cannot_show_a_sign_is_no_reason_to_fail(encoding: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "oelm", "info", "--model_type", "×–é日"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert result.returncode == 2
    assert result.stderr.startswith(b"oelm: unknown variant")
