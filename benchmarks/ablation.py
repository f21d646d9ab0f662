"""What each technique of the graph engine brings, by taking it away: python -m benchmarks.ablation DATA

All contenders train the same model (medium-512, baseline, bf16) in one process, in interleaved rounds. Each lacks one
thing and has in its place what PyTorch offers: its compiler's kernels, its products one at a time, its launches.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.results import write_result
from oelm.bench.bench import checked
from oelm.bench.contenders import Ours
from oelm.bench.measure import interleaved
from oelm.config import RunConfig
from oelm.data.batches import open_corpus
from oelm.fast.products import Product

if TYPE_CHECKING:  # its kernels can be imported where there is a GPU alone
    from oelm.training.graph import GraphEngine


class CompiledUp(Product):
    """The feed-forward layer's first half with the GELU left to the compiler."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(super().forward(x))


@torch.compile(dynamic=False)
def cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight)[:, :vocab_size].float(), targets, reduction="sum")


def compiled_head_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, vocab_size: int, scale: float, gradient: Tensor, add: bool
) -> tuple[Tensor, Tensor]:
    """oelm.fast.loss.head_loss as the compiler and autograd would have it."""
    hidden, weight = (tensor.detach().requires_grad_() for tensor in (hidden, weight))
    loss = cross_entropy(hidden, weight, targets, vocab_size)
    by_hidden, by_weight = torch.autograd.grad(loss, (hidden, weight), torch.full_like(loss, scale))
    if add:
        gradient.add_(by_weight)
    else:
        gradient.copy_(by_weight)
    return loss.detach(), by_hidden


class Launches:
    """Instead of a captured graph: the same work, launched anew each time."""

    def __init__(self, engine: GraphEngine, resting: Any) -> None:
        self.replay = lambda: engine._compute(resting, engine._updates[resting])


def without_graph(contender: Ours) -> None:
    engine = cast("GraphEngine", contender.engine)
    engine._graphs = {resting: Launches(engine, resting) for resting in engine._graphs}  # type: ignore[misc]


@contextmanager
def replaced(place: str, by: object) -> Iterator[None]:
    with mock.patch(place, by):
        yield


WITHOUT: dict[str, Callable[[], Any]] = {
    "everything": nullcontext,
    "without the fused output layer": lambda: replaced("oelm.fast.working.head_loss", compiled_head_loss),
    "without weight gradients in one launch": lambda: replaced("oelm.fast.grouped_kernels.tile_of", lambda _: None),
    "without our GELU": lambda: replaced("oelm.fast.working.Up", CompiledUp),
    "without our add-and-norm": lambda: replaced("oelm.fast.working.FusedAddNorm", lambda norm, _: norm),
    "without the compiler": lambda: torch.compiler.set_stance("force_eager"),
    "without a CUDA graph": nullcontext,
}


def measure(data: Path, batch_size: int, rounds: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"preset": "medium-512", "batch_size": batch_size, "max_steps": 10**9}
    config = RunConfig(**fields, data_path=str(data), engine="graph", device="cuda")
    corpus = open_corpus(data, config.vocab_size, config.seq_len)
    tokens, device = corpus.split("train")[:], torch.device("cuda")
    contenders = {}
    for name, lacking in WITHOUT.items():
        with lacking():
            contenders[name] = Ours(config.resolved(corpus.vocab_size), device, tokens)
        if name == "without a CUDA graph":
            without_graph(contenders[name])
        contenders[name].run(1)
        checked(contenders[name], config.resolved(corpus.vocab_size), device, tokens)
        print(f"ready: {name}", flush=True)
    times = interleaved(list(contenders.values()), device, rounds, 0.3, on_round=lambda: None)
    for name, taken in zip(contenders, times, strict=True):
        print(f"{batch_size} × 512  {name:<40} {taken.median:.3f} ms", flush=True)
    return {
        name: {"ms": taken.median, "ms_rounds": taken.rounds} for name, taken in zip(contenders, times, strict=True)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="a folder that `oelm prepare` made of text in GPT-2's tokens")
    parser.add_argument("--rounds", type=int, default=6, help="an even number")
    options = parser.parse_args()
    found = {}
    for batch_size in (8, 64):
        found[f"{batch_size}x512"] = measure(options.data, batch_size, options.rounds)
        torch.cuda.empty_cache()
    print(write_result("ablation", {"shape": "medium-512, bf16", "data": options.data.name, "steps": found}))


if __name__ == "__main__":
    main()
