"""`oelm bench`: training steps side by side, after proof that they compute the same thing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from oelm.bench.contenders import Contender, HuggingFace, NanoGpt, Ours, Tokens, first_step, losses_on_one_batch
from oelm.bench.measure import Times, copy_rate, interleaved, launches, matmul_rate, pairs
from oelm.bench.options import Bench
from oelm.bench.record import write_result
from oelm.config import RunConfig
from oelm.data.batches import open_corpus
from oelm.errors import UserError
from oelm.model.cost import floor, step_cost
from oelm.training.step import precision_of
from oelm.training.world import choose_device

Build = Callable[[], Contender]
# How far, relatively, a first step's loss and its gradient's norm may be from their model's. At birth the loss of any
# model is nearly the same, but not its gradient: without attention the norm is a quarter less; bf16 moves it by 2e-4.
SAME_STEP = {torch.float32: (1e-5, 1e-4), torch.bfloat16: (1e-3, 1e-2), torch.float16: (1e-3, 1e-2)}


def bench(options: Bench, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures, writes the result file, and returns what is in it."""
    first = options.config("baseline")
    device = choose_device(first.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # which is where kernels are launched
    corpus = open_corpus(first.data_folder, first.vocab_size, first.seq_len)
    tokens = corpus.split("train")[:]
    vocab_size = first.resolved(corpus.vocab_size).vocab_size
    result: dict[str, Any] = {"options": public(options), "device": str(device), "tokens": corpus.hashes["train"]}
    result["vocab_size"] = vocab_size
    if options.nanogpt or options.huggingface:
        result["same_loss"] = _prove(options, device, tokens, vocab_size)
        say(f"the same loss on one batch: {result['same_loss']}")
    result["rates"] = {"flops": matmul_rate(device), "bytes": copy_rate(device)}
    entries: list[dict[str, Any]] = []
    contenders: list[Contender] = []
    try:
        for build, config in _line_up(options, device, tokens, vocab_size):
            contender, memory = _with_memory(build, device)
            contenders.append(contender)
            entries.append(_computed(contender.name, config, memory, result["rates"]))
            if isinstance(contender, Ours):
                entries[-1]["first_step"] = checked(contender, config, device, tokens)
            say(f"ready: {contender.name}")
        times = interleaved(
            contenders, device, options.rounds, options.seconds, on_round=lambda: say("a round is done")
        )
        for entry, contender, taken in zip(entries, contenders, times, strict=True):
            entry |= _measured(entry, contender, taken, device)
    finally:
        for contender in contenders:
            contender.close()
    result["contenders"] = entries
    write_result(options.path, result)
    return result


def public(options: Bench) -> dict[str, Any]:
    """The options without the paths of the machine that they were given on."""
    names = {name: Path(path).name for name in ("nanogpt", "data_path") if (path := getattr(options, name))}
    return {name: value for name, value in {**asdict(options), **names}.items() if name != "out"}


def _prove(options: Bench, device: torch.device, tokens: Tokens, vocab_size: int) -> dict[str, float]:
    config = options.config("baseline").resolved(vocab_size)
    if config.positions != "learned":
        config = replace(config, positions="learned")  # which is what the peers have
    checkout = Path(options.nanogpt) if options.nanogpt else None
    return losses_on_one_batch(config, device, tokens, checkout, options.huggingface)


def _line_up(options: Bench, device: torch.device, tokens: Tokens, vocab_size: int) -> list[tuple[Build, RunConfig]]:
    """How each contender is made, and the run that it stands for."""
    ours = [
        options.config(variant, engine).resolved(vocab_size)
        for variant in options.variants
        for engine in options.engines
    ]
    entries: list[tuple[Build, RunConfig]] = [(lambda c=c: Ours(c, device, tokens), c) for c in ours]  # type: ignore[misc]
    peer = replace(options.config("baseline").resolved(vocab_size), positions="learned")
    compiled = device.type == "cuda" and not options.eager_peers
    if options.nanogpt:
        checkout = Path(options.nanogpt)
        entries.append((lambda: NanoGpt(checkout, peer, device, tokens, compiled), peer))
    if options.huggingface:
        entries.append((lambda: HuggingFace(peer, device, tokens, compiled), peer))
    return entries


def _with_memory(build: Build, device: torch.device) -> tuple[Contender, int | None]:
    """A contender that has run a few steps, and the most memory that it held meanwhile."""
    if device.type != "cuda":
        contender = build()
        contender.run(3)
        return contender, None
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    contender = build()
    contender.run(3)
    torch.cuda.synchronize(device)
    return contender, torch.cuda.max_memory_allocated(device) - before


def checked(contender: Ours, config: RunConfig, device: torch.device, tokens: Tokens) -> dict[str, dict[str, float]]:
    """What the first of the measured steps gave, which must be what the model that they stand for gives."""
    model, tolerances = first_step(config, device, tokens), SAME_STEP[precision_of(config, device)]
    found = {}
    for what, ours, theirs, tolerance in zip(("loss", "norm"), contender.first_step, model, tolerances, strict=True):
        if not math.isclose(ours, theirs, rel_tol=tolerance):
            wrong = f"{what} {ours:.6g} instead of {theirs:.6g}"
            raise UserError(f"{contender.name} does not compute its model's step ({wrong}), so its time means nothing")
        found[what] = {"measured": ours, "model": theirs}
    return found


def _computed(name: str, config: RunConfig, memory: int | None, rates: dict[str, float]) -> dict[str, Any]:
    return {
        "name": name,
        "model_type": config.model_type,
        "parameters": step_cost(config, config.batch_size).parameters,
        "tokens_per_step": config.tokens_per_step,
        "flops_per_step": step_cost(config, config.batch_size).flops,
        "peak_memory_bytes": memory,
        "peak_flops": rates["flops"],
    }


def _measured(entry: dict[str, Any], contender: Contender, times: Times, device: torch.device) -> dict[str, Any]:
    return {
        "ms": times.median,
        "ms_rounds": times.rounds,
        "tokens_per_second": 1000 * entry["tokens_per_step"] / times.median,
        "mfu": 1000 * entry["flops_per_step"] / times.median / entry["peak_flops"],
        "launches": launches(contender) if device.type == "cuda" else None,
    }


def floor_ms(result: dict[str, Any], entry: dict[str, Any]) -> float:
    """The least milliseconds that a step of a contender could take, by the rates measured beside it."""
    options, rates = result["options"], result["rates"]
    fields = ("preset", "batch_size", "seq_len", "d_model", "positions")
    config = Bench(**{name: options[name] for name in fields}).config(entry["model_type"])
    gpu = result["device"] != "cpu"
    least = floor(config.resolved(result["vocab_size"]), config.batch_size, rates["flops"], rates["bytes"], gpu)
    return 1000 * least.total


def ratio(entry: dict[str, Any], first: dict[str, Any]) -> float:
    """How long a contender's step is, as a multiple of the first one's: the median over the pairs of rounds."""
    both = zip(pairs(entry["ms_rounds"]), pairs(first["ms_rounds"]), strict=True)
    return statistics.median(theirs / ours for theirs, ours in both)


HEADINGS = ("", "ms/step", "range", "tokens/s", "of peak", "launches", "memory", "vs first", "of the saving")


def cells(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """The result as a table's rows."""
    first = result["contenders"][0]
    rows: list[tuple[str, ...]] = []
    for entry in result["contenders"]:
        memory, launched = entry["peak_memory_bytes"], entry["launches"]
        rows.append(
            (
                entry["name"],
                f"{entry['ms']:.3f}",
                f"{min(entry['ms_rounds']):.3f}–{max(entry['ms_rounds']):.3f}",
                f"{entry['tokens_per_second']:,.0f}",
                f"{entry['mfu']:.1%}",
                "–" if launched is None else f"{launched:.0f}",
                "–" if memory is None else f"{memory / 2**30:.2f} GiB",
                f"{ratio(entry, first):.3f} ×",
                _saving(result, entry),
            )
        )
    rows.append(("floor", f"{floor_ms(result, first):.3f}", *[""] * (len(HEADINGS) - 2)))
    return rows


def _saving(result: dict[str, Any], entry: dict[str, Any]) -> str:
    """What a variant saves against the first, as a share of what its floor says it could: in the median of the pairs
    of rounds, and in the least and the greatest."""
    first = result["contenders"][0]
    possible = floor_ms(result, first) - floor_ms(result, entry)
    if possible < 1e-6:
        return "–"
    both = zip(pairs(entry["ms_rounds"]), pairs(first["ms_rounds"]), strict=True)
    shares = [(ours - theirs) / possible for theirs, ours in both]
    return f"{statistics.median(shares):.0%} ({min(shares):.0%}–{max(shares):.0%})"
