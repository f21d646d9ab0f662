"""The hub corpora, streamed for real by `datasets` from a server on loopback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oelm.data.tokenizer import Gpt2Bpe
from tests.conftest import oelm
from tests.data.hub import Hub, serving

STORIES = [f"Story {i}: there were {i * i} little things, and {i + 7} of them sang." for i in range(1500)]


def parquet(texts: list[Any], column: str = "text") -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({column: texts}), sink, row_group_size=200, compression="none")
    return bytes(sink.getvalue())


def prepare(hub: Hub, name: str, folder: Path, *flags: str) -> tuple[int, str]:
    arguments = ("prepare", name, "--data-dir", str(folder / "data"), *flags)
    result = oelm(*arguments, HF_ENDPOINT=hub.endpoint, HF_HOME=str(folder / "home"))
    return result.returncode, result.stdout + result.stderr


def documents(folder: Path, name: str) -> list[str]:
    """All documents of a prepared corpus, in no order."""
    texts: list[str] = []
    for split in ("train", "val", "test"):
        tokens = np.fromfile(folder / "data" / name / f"{split}.bin", dtype=np.uint16)
        texts += Gpt2Bpe().decode(tokens.tolist()).split("<|endoftext|>")[:-1]
    return sorted(texts)


def test_tinystories(tmp_path: Path) -> None:
    with serving({"roneneldan/TinyStories": {"data/train-00000-of-00001.parquet": parquet(STORIES)}}) as hub:
        code, output = prepare(hub, "tinystories", tmp_path)
    assert code == 0, output
    assert documents(tmp_path, "tinystories") == sorted(STORIES)
    meta = json.loads((tmp_path / "data" / "tinystories" / "meta.json").read_text())
    assert meta["source"]["hub"] == "roneneldan/TinyStories"


def test_openwebtext_comes_from_the_parquet_conversion(tmp_path: Path) -> None:
    path = "plain_text/train/0000.parquet"
    with serving({"Skylion007/openwebtext": {path: parquet(STORIES)}}) as hub:
        code, output = prepare(hub, "openwebtext", tmp_path, "--val-fraction", "0.1", "--test-fraction", "0.1")
    assert code == 0, output
    assert documents(tmp_path, "openwebtext") == sorted(STORIES)
    assert "main" not in hub.revisions


def test_wikitext_lines_are_rejoined_into_articles(tmp_path: Path) -> None:
    articles = [[f" = Article {i} = \n", "", f" It has {i} words . \n", " = = Part = = \n"] for i in range(900)]
    rows = [line for article in articles for line in article]
    card = "---\nconfigs:\n- config_name: wikitext-103-raw-v1\n  data_files:\n"
    card += "  - split: train\n    path: wikitext-103-raw-v1/train-*\n---\n"
    files = {
        "README.md": card.encode(),
        "wikitext-103-raw-v1/train-00000-of-00001.parquet": parquet(rows),
    }
    with serving({"Salesforce/wikitext": files}) as hub:
        code, output = prepare(hub, "wikitext103", tmp_path)
    assert code == 0, output
    assert documents(tmp_path, "wikitext103") == sorted("".join(article) for article in articles)


def test_a_connection_cut_halfway_is_taken_up_again(tmp_path: Path) -> None:
    with serving({"roneneldan/TinyStories": {"data/train-00000-of-00001.parquet": parquet(STORIES)}}, cuts=1) as hub:
        code, output = prepare(hub, "tinystories", tmp_path)
        assert hub.cuts_left == 0
    assert code == 0, output
    assert documents(tmp_path, "tinystories") == sorted(STORIES)


def test_a_hub_that_does_not_answer_gets_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with serving({}) as hub:
        pass  # nobody listens there any more
    code, output = prepare(hub, "tinystories", tmp_path)
    assert code == 2
    assert "Traceback" not in output
    assert "roneneldan/TinyStories could not be read to its end" in output
    assert not list((tmp_path / "data").iterdir())


def test_rows_without_a_text_are_passed_over(tmp_path: Path) -> None:
    rows = parquet([text for story in STORIES for text in (story, None)])
    with serving({"roneneldan/TinyStories": {"data/train-00000-of-00001.parquet": rows}}) as hub:
        code, output = prepare(hub, "tinystories", tmp_path)
    assert code == 0, output
    assert documents(tmp_path, "tinystories") == sorted(STORIES)


@pytest.mark.parametrize("content", [parquet(STORIES, "story"), parquet(list(range(300)))], ids=["name", "kind"])
def test_a_dataset_whose_text_is_elsewhere_gets_one_line(tmp_path: Path, content: bytes) -> None:
    with serving({"roneneldan/TinyStories": {"data/train-00000-of-00001.parquet": content}}) as hub:
        code, output = prepare(hub, "tinystories", tmp_path)
    assert code == 2
    assert "Traceback" not in output
    assert "has no column 'text' that holds text (it has: " in output
    assert not list((tmp_path / "data").iterdir())


def test_a_dataset_that_is_gone_gets_one_line(tmp_path: Path) -> None:
    with serving({}) as hub:
        code, output = prepare(hub, "tinystories", tmp_path)
    assert code == 2
    assert "Traceback" not in output
    assert "could not be read to its end" in output
