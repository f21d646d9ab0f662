"""Text from finished or stopped runs."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oelm.data.tokenizer import Tokenizer, open_tokenizer
from oelm.errors import KINDS, UserError, is_number, is_truth, is_whole
from oelm.runfolder import RunFolder

if TYPE_CHECKING:
    from oelm.model.gpt import GPT


@dataclass(frozen=True)
class Sampling:
    """How text is drawn."""

    prompt: str = ""
    """What the text begins with."""
    tokens: int = 200
    """How many tokens to add at the most."""
    temperature: float = 0.8
    """0 always takes the likeliest token; higher is wilder."""
    top_k: int = 50
    """Choose among this many likeliest tokens."""
    seed: int = 0
    """Seed of the draws; the same for all runs."""
    best: bool = False
    """Take the weights of the best validation instead of the last ones."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            wanted: type[Any] = type(field.default)
            if not _fits(value, wanted):
                raise UserError(f"--{field.name} must be {KINDS[wanted]}, not {value!r}")
            object.__setattr__(self, field.name, wanted(value))  # NumPy's numbers become Python's
        for name, low, high in (("tokens", 1, 100_000), ("top_k", 1, 2**31), ("seed", 0, 2**63 - 1)):
            if not low <= getattr(self, name) <= high:
                raise UserError(f"--{name} {getattr(self, name)} must lie between {low:,} and {high:,}")
        if self.temperature != 0 and not 0.001 <= self.temperature <= 1000:
            raise UserError(f"--temperature {self.temperature} must be 0, or lie between 0.001 and 1,000")
        try:
            self.prompt.encode()
        except UnicodeEncodeError:
            raise UserError("--prompt is not text in UTF-8") from None


def _fits(value: object, wanted: type) -> bool:
    if wanted is int:
        return is_whole(value)
    if wanted is bool:
        return is_truth(value)
    return is_number(value) if wanted is float else isinstance(value, wanted)


def sample(folder: RunFolder, how: Sampling) -> str:
    """The prompt and what the run's model makes of it."""
    from oelm.model.generate import generate

    model, tokenizer = open_model(folder, how.best), run_tokenizer(folder)
    known, end = tokenizer.vocab_size, tokenizer.end_of_text
    if known > model.shape.vocab_size:
        raise UserError(f"{folder.path}: its tokenizer has {known:,} tokens, its model {model.shape.vocab_size:,}")
    start = [end, *map(int, tokenizer.encode(how.prompt))]
    tokens = generate(model, start, how.tokens, how.temperature, how.top_k, how.seed, end, known)
    return tokenizer.decode(tokens[1:])


def one_after_the_other(names: Sequence[str], texts: Sequence[str]) -> str:
    """One text as it is; several under their names."""
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"[{name}]\n{text}" for name, text in zip(names, texts, strict=True))


def open_model(folder: RunFolder, best: bool = False) -> GPT:
    """The model of a run's last checkpoint that can be used, or of its best validation, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from oelm.model.gpt import GPT
    from oelm.training.checkpoint import DamagedError, step_of_weights

    config, manifest = folder.identified()
    model = GPT(config, config.seed)
    damage = ""
    for path in _weights(folder, best):
        if damage:
            print(f"oelm: {damage}; taking {path} instead", file=sys.stderr)
        try:
            step_of_weights(path, manifest["run_id"])
            model.load_state_dict(load_file(path))
            return model.eval()
        except (DamagedError, SafetensorError, RuntimeError, OSError) as error:
            damage = f"{path} cannot be loaded: {textwrap.shorten(str(error), 200)}"
    raise UserError(damage)


def _weights(folder: RunFolder, best: bool) -> list[Path]:
    """Where a run's weights are, the wanted ones first. The best ones also do before the first checkpoint."""
    from oelm.training.checkpoint import by_age

    steps = [] if best else [step / "model.safetensors" for step in by_age(folder.checkpoints)]
    found = steps or list(folder.checkpoints.glob("best.safetensors"))
    if best and not found:
        raise UserError(
            f"{folder.path} has no best weights: none was saved since it began or went back; leave out --best"
        )
    if not found:
        raise UserError(f"{folder.path} has no checkpoint yet")
    return found


def run_tokenizer(folder: RunFolder) -> Tokenizer:
    """The tokenizer that a run was trained with; a small one lies in the run folder."""
    return open_tokenizer(folder.manifest()["data"]["tokenizer"], folder.path)
