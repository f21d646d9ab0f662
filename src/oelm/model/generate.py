"""Text from a model, token by token."""

import torch
import torch.nn.functional as F
from torch import Tensor

from oelm.model.gpt import GPT


@torch.no_grad()
def generate(
    model: GPT,
    prompt: list[int],
    count: int,
    temperature: float,
    top_k: int,
    seed: int,
    stop: int | None = None,
    vocab_size: int | None = None,
) -> list[int]:
    """The prompt and up to `count` tokens after it, among the first `vocab_size`; ends early at the token `stop`.

    Temperature 0 always takes the likeliest token. The same seed gives the same text for every model, as far as the
    models agree: the draws come from a generator of their own, on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    device = model.tokens.weight.device
    tokens, was_training = list(prompt), model.training
    model.eval()
    for _ in range(count):
        window = torch.tensor([tokens[-model.shape.seq_len :]], device=device)
        # Of the last token alone logits are wanted, and most of a step's work are logits.
        last = model.trunk(model.tokens(window))[0, -1]
        logits = F.linear(last, model.tokens.weight[:vocab_size]).float().cpu()
        token = _draw(logits, temperature, top_k, generator)
        if token == stop:
            break
        tokens.append(token)
    model.train(was_training)
    return tokens


def _draw(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> int:
    logits = logits.nan_to_num(0.0).clamp(-1e6, 1e6)  # a model that has diverged babbles, but does not fail here
    if temperature == 0:
        return int(logits.argmax())
    likeliest, places = logits.topk(min(top_k, len(logits)))
    choice = torch.multinomial((likeliest / temperature).softmax(0), 1, generator=generator)
    return int(places[choice])
