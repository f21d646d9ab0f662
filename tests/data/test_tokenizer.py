"""Tokenizers: GPT-2's own numbers, and texts that come back as they went in."""

import functools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.data import storybook, tokenizer
from oelm.data.tokenizer import Gpt2Bpe, SmallBpe, Tokenizer, open_tokenizer
from oelm.errors import UserError

# Published examples of GPT-2's encoding.
KNOWN = {"Hello world": [15496, 995], "Hello, my dog is cute": [15496, 11, 616, 3290, 318, 13779]}


def test_gpt2_gives_the_published_numbers() -> None:
    for text, tokens in KNOWN.items():
        assert Gpt2Bpe().encode(text).tolist() == tokens


@given(st.lists(st.text(min_size=1, max_size=4), min_size=3, max_size=30), st.sampled_from([" ", "\n", "\n\n", " \t"]))
def test_a_long_text_encoded_in_parts_has_the_tokens_of_the_whole(words: list[str], between: str) -> None:
    text = between.join(f"x{word}x" for word in words)
    encoding = tokenizer.gpt2_encoding()
    parts = list(tokenizer._parts(text, 60))
    assert "".join(parts) == text
    if between in " \n":  # there is a break in every part
        assert [token for part in parts for token in encoding.encode_ordinary(part)] == encoding.encode_ordinary(text)


@pytest.fixture(params=["gpt2", "small-bpe"])
def either(request: pytest.FixtureRequest) -> Tokenizer:
    return Gpt2Bpe() if request.param == "gpt2" else small()


@functools.cache
def small() -> SmallBpe:
    return SmallBpe.train(storybook.stories(200), vocab_size=500)


@pytest.mark.parametrize("run", [" ", "\n", "a", "文"])
def test_a_run_of_millions_of_like_characters_is_encoded(either: Tokenizer, run: str) -> None:
    text = f"before{run * 1_200_000}after"
    assert either.decode(either.encode(text).tolist()) == text


@pytest.mark.parametrize("run", [" ", "a", "文"])
def test_a_run_of_millions_of_like_characters_is_learnt_from(run: str) -> None:
    assert SmallBpe.train([run * 1_200_000], vocab_size=500).encode(run * 900).size < 90


def test_special_tokens_in_a_text_are_ordinary_characters(either: Tokenizer) -> None:
    assert either.end_of_text not in either.encode("a <|endoftext|> b").tolist()


def test_a_lone_surrogate_does_not_stop_a_corpus(either: Tokenizer) -> None:
    assert either.decode(either.encode("a\ud800b").tolist()) == "a�b"
    assert SmallBpe.train(["a\ud800b"], vocab_size=300).vocab_size >= SmallBpe.fewest


@given(st.text())
def test_every_text_comes_back(text: str) -> None:
    for each in (Gpt2Bpe(), small()):
        assert each.decode(each.encode(text).tolist()) == text


def test_the_small_bpe_is_kept_with_its_corpus(tmp_path: Path) -> None:
    trained = small()
    trained.save(tmp_path)
    loaded = open_tokenizer("small-bpe", tmp_path)
    story = storybook.tell(1, 5) + " Ünïcode, too."
    assert loaded.vocab_size == 500
    assert loaded.encode(story).tolist() == trained.encode(story).tolist()
    assert loaded.decode(loaded.encode(story).tolist()) == story


def test_an_unknown_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="asks for the tokenizer 'gpt5'; this version has gpt2 and small-bpe"):
        open_tokenizer("gpt5", tmp_path)


@pytest.mark.parametrize("content", [None, "{"])
def test_a_missing_or_damaged_tokenizer_file_is_named_with_where_to_get_it(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(
        UserError, match=r"tokenizer\.json cannot be read .*again with --overwrite; in a run folder: copy"
    ):
        open_tokenizer("small-bpe", tmp_path)
