"""The README's commands are run as they stand, in order, in an empty folder; its Python, too."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.page import HEADLINES, headline
from tests.data.hub import serving
from tests.data.test_hub import STORIES, parquet

README = (Path(__file__).parents[1] / "README.md").read_text()
CHINESE = (Path(__file__).parents[1] / "README.zh.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands(text: str = README) -> list[str]:
    lines = [line.partition("#")[0].strip() for block in blocks("sh", text) for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("make ")]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "HF_HOME": str(tmp_path / "hub")}


def test_the_commands_work_as_they_stand(tmp_path: Path, environment: dict[str, str]) -> None:
    """The hub is played by a server on loopback, and texts/ by a file of ours."""
    assert len(commands()) >= 10
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "some.txt").write_text("<|endoftext|>\n".join(f"{story}\n" * 4 for story in STORIES[:200]))
    with serving({"roneneldan/TinyStories": {"data/train-00000-of-00001.parquet": parquet(STORIES[:600])}}) as hub:
        for command in commands():
            started = time.perf_counter()
            result = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env={**environment, "HF_ENDPOINT": hub.endpoint},
                capture_output=True,
                text=True,
                timeout=300,
            )
            print(f"{time.perf_counter() - started:5.1f} s  {command}")
            assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"


def test_the_chinese_readme_says_what_the_english_one_says() -> None:
    from oelm import variants

    assert len(commands(CHINESE)) >= 8
    assert set(commands(CHINESE)) <= set(commands())  # which are run
    assert set(re.findall(r"^\| `(\w+)` \|", CHINESE, flags=re.MULTILINE)) == set(variants.NAMED)
    assert "(README.zh.md)" in README.partition("```")[0]


def test_the_python_works_as_it_stands(tmp_path: Path, environment: dict[str, str]) -> None:
    (program,) = blocks("python")
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert "OELM-Freeze" in result.stdout
    assert result.stdout.count("One day") == 2


def test_the_matrix_is_one(tmp_path: Path) -> None:
    from oelm.runs.matrix import read_matrix

    (matrix,) = blocks("yaml")
    (tmp_path / "matrix.yaml").write_text(matrix)
    for corpus in ("wiki", "reviews"):
        (tmp_path / "data" / corpus).mkdir(parents=True)
        (tmp_path / "data" / corpus / "meta.json").touch()
    arms = read_matrix(tmp_path / "matrix.yaml", tmp_path / "outputs", tmp_path / "data")
    assert [len(arm.trials()) for arm in arms] == [4] * 6
    assert [len(arm.runs(1e-3)) for arm in arms] == [3] * 6


def test_the_map_names_what_there_is() -> None:
    """Every module and room of the source tree is on the README's map."""
    source = Path(__file__).parents[1] / "src" / "oelm"
    (chart,) = re.findall(r"```\n(src/oelm/.*?)```", README, flags=re.DOTALL)
    for path in source.rglob("*.py"):
        if path.stem not in ("__init__", "__main__", "errors"):
            assert re.search(rf"\b{path.stem}\b", chart), f"{path.name} is not on the map"


def test_the_variants_are_those_of_the_code() -> None:
    from oelm import variants

    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", README, flags=re.MULTILINE))
    assert rows == variants.NAMED


def test_the_sources_and_parts_are_those_of_the_grammar() -> None:
    from oelm import grammar, specs

    sources, parts = re.findall(r"\| (?:sources|parts) \| \|\n\|---\|---\|\n((?:\|.*\n)+)", README)
    written = [set(re.findall(r"`(\w+)(?:\([^)]*\))?`", column)) for column in (sources, parts)]
    assert written == [set(specs.SOURCES), set(grammar.PARTS)]


def test_the_headline_is_what_the_kept_runs_say() -> None:
    for study in HEADLINES:
        assert headline(study) in README, (
            f"run: python -c 'from experiments.page import *; print(headline(\"{study}\"))'"
        )


def test_the_figures_are_those_of_the_result_files() -> None:
    results = Path(__file__).parents[1] / "benchmarks" / "results"
    prepared = json.loads((results / "prepare.json").read_text())
    deterministic = json.loads((results / "deterministic.json").read_text())
    assert f"{prepared['ratio']['median']:.1f} × as fast" in README
    assert f"takes {max(prepared['peak_memory_mb'].values()):.0f} MB" in README
    seconds = json.loads((results / "status.json").read_text())["seconds"]["median"]
    assert f"`oelm status` takes {seconds:.1f} s over 200 runs" in README
    engine = deterministic["shape"].split(", ")[-1]
    assert f"cost {deterministic['cost_ratio']:.1f} × the step time with `--engine {engine}`" in README
    shown = deterministic.get("resume_same_bytes", False)
    assert ("is yet to be shown (LOG.md)" in README) != shown
