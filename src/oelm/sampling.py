"""Text from finished or stopped runs."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from oelm.data.tokenizer import Tokenizer, open_tokenizer
from oelm.errors import UserError
from oelm.model.generate import generate
from oelm.model.gpt import GPT
from oelm.runfolder import RunFolder
from oelm.training import checkpoint


def sample(
    folder: RunFolder,
    prompt: str = "",
    tokens: int = 200,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
    best: bool = False,
) -> str:
    """The prompt and what the run's model makes of it."""
    if tokens < 1 or top_k < 1 or temperature < 0:
        raise UserError("--tokens and --top-k must be at least 1, and --temperature at least 0")
    model, tokenizer = open_model(folder, best), run_tokenizer(folder)
    end = tokenizer.end_of_text
    start = [end, *map(int, tokenizer.encode(prompt))]
    return tokenizer.decode(generate(model, start, tokens, temperature, top_k, seed, stop=end)[1:])


def open_model(folder: RunFolder, best: bool = False) -> GPT:
    """The model of a run's last checkpoint, or of its best validation, on the CPU."""
    path = folder.checkpoints / "best.safetensors"
    if not best:
        newest = checkpoint.last(folder.checkpoints)
        path = newest / "model.safetensors" if newest else path
    config = folder.config()
    model = GPT(config, config.seed)
    if not path.exists():
        raise UserError(f"{folder.path} has no checkpoint yet")
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise UserError(f"{path} cannot be loaded: {' '.join(str(error).split())}") from None
    return model.eval()


def run_tokenizer(folder: RunFolder) -> Tokenizer:
    """The tokenizer that a run was trained with; a small one lies in the run folder."""
    return open_tokenizer(folder.manifest()["data"]["tokenizer"], Path(folder.path))
