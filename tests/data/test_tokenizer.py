"""Tokenizers: GPT-2's own numbers, and texts that come back as they went in."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.data import storybook
from oelm.data.tokenizer import Gpt2Bpe, SmallBpe, open_tokenizer
from oelm.errors import UserError

# Published examples of GPT-2's encoding.
KNOWN = {"Hello world": [15496, 995], "Hello, my dog is cute": [15496, 11, 616, 3290, 318, 13779]}


def test_gpt2_gives_the_published_numbers() -> None:
    for text, tokens in KNOWN.items():
        assert Gpt2Bpe().encode(text).tolist() == tokens


def test_special_tokens_in_a_text_are_ordinary_characters() -> None:
    tokenizer = Gpt2Bpe()
    assert tokenizer.end_of_text not in tokenizer.encode("a <|endoftext|> b").tolist()


def test_a_lone_surrogate_does_not_stop_a_corpus() -> None:
    assert Gpt2Bpe().decode(Gpt2Bpe().encode("a\ud800b").tolist()) == "a�b"


@given(st.text())
def test_gpt2_gives_every_text_back(text: str) -> None:
    tokenizer = Gpt2Bpe()
    assert tokenizer.decode(tokenizer.encode(text).tolist()) == text


def test_the_small_bpe_is_kept_with_its_corpus_and_gives_texts_back(tmp_path: Path) -> None:
    trained = SmallBpe.train(storybook.stories(200), vocab_size=500)
    trained.save(tmp_path)
    loaded = open_tokenizer("small-bpe", tmp_path)
    story = storybook.tell(1, 5) + " Ünïcode, too."
    assert loaded.vocab_size == 500
    assert loaded.encode(story).tolist() == trained.encode(story).tolist()
    assert loaded.decode(loaded.encode(story).tolist()) == story


def test_an_unknown_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="asks for the tokenizer 'gpt5'; this version has gpt2 and small-bpe"):
        open_tokenizer("gpt5", tmp_path)


def test_a_damaged_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be read"):
        open_tokenizer("small-bpe", tmp_path)
