"""`oelm info`: what a run would be, computed from its shape alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from oelm.config import RunConfig
from oelm.data import corpora
from oelm.data.meta import META_FILE, Meta
from oelm.data.request import STORYBOOK_VOCAB
from oelm.data.tokenizer import GPT2_VOCAB
from oelm.model.cost import Cost, shrunk_feed_forward, step_cost, trained_share


def describe(config: RunConfig) -> dict[str, Any]:
    """Parameters, cost per step and what freezing saves, as JSON has it."""
    config = _with_vocabulary(config)
    cost = step_cost(config, config.batch_size)
    trained = step_cost(replace(config, model_type="baseline"), config.batch_size)
    return {
        "model_type": config.model_type,
        "variant": str(config.variant),
        "preset": config.preset,
        "parameters": {"total": cost.parameters, "trainable": cost.trainable, "frozen": cost.frozen},
        "trained_share_of_qk": trained_share(config),
        "baseline_of_as_many": {"d_ff": shrunk_feed_forward(config)},
        "tokens_per_step": config.tokens_per_step,
        "flops_per_step": {"total": cost.flops, "by_part": {part.name: part.total for part in cost.parts}},
        "optimizer_bytes": cost.optimizer_bytes,
        "freezing_saves": _savings(cost, trained),
    }


def _savings(cost: Cost, trained: Cost) -> dict[str, Any]:
    return {
        "trainable_parameters": trained.trainable - cost.trainable,
        "flops_per_step": trained.flops - cost.flops,
        "flops_share": (trained.flops - cost.flops) / trained.flops,
        "optimizer_bytes": trained.optimizer_bytes - cost.optimizer_bytes,
    }


def show(config: RunConfig, as_json: bool) -> None:
    content = describe(config)
    if as_json:
        print(json.dumps(content, indent=2))
        return
    parameters, saves, flops = content["parameters"], content["freezing_saves"], content["flops_per_step"]
    share = parameters["frozen"] / parameters["total"]
    print(f"{content['model_type']} ({content['variant']}), preset {content['preset']}")
    print(f"  parameters       {parameters['total']:>14,}")
    print(f"    trainable      {parameters['trainable']:>14,}")
    print(f"    frozen         {parameters['frozen']:>14,}  ({share:.1%})")
    print(f"  trained of Q/K   {content['trained_share_of_qk']:>14.2%}  (of the scalars of a plain Q and K)")
    print(
        f"  optimiser memory {content['optimizer_bytes'] / 2**20:>14,.1f} MiB (two fp32 moments per trained parameter)"
    )
    print(f"  each step        {content['tokens_per_step']:>14,} tokens")
    print(f"  FLOPs per step   {flops['total'] / 1e9:>14,.2f} GFLOP")
    for name, part in flops["by_part"].items():
        print(f"    {name:<18} {part / 1e9:>10,.2f}  ({part / flops['total']:.1%})")
    print("  freezing saves, against the trained baseline")
    print(f"    parameters     {saves['trainable_parameters']:>14,} fewer to train")
    print(f"    FLOPs per step {saves['flops_per_step'] / 1e9:>14,.2f} GFLOP ({saves['flops_share']:.1%})")
    print(f"    memory         {saves['optimizer_bytes'] / 2**20:>14,.1f} MiB of optimiser state")
    if width := content["baseline_of_as_many"]["d_ff"]:
        print(f"  a baseline that trains as many: --d_ff {width}")


def corpus_line(folder: Path) -> str:
    """A prepared corpus in one line."""
    meta = Meta.read(folder)
    splits = ", ".join(f"{split} {count:,}" for split, count in meta.tokens.items())
    return f"{folder}: {sum(meta.documents.values()):,} documents; tokens: {splits} ({meta.tokenizer})"


def _with_vocabulary(config: RunConfig) -> RunConfig:
    """Writes out a vocabulary that is left to the corpus: the prepared one's, or what the corpus would get."""
    if config.vocab_size:
        return config
    folder = config.data_folder
    if config.data_path or config.dataset not in corpora.NAMES or (folder / META_FILE).exists():
        return replace(config, vocab_size=Meta.read(folder).vocab_size)
    return replace(config, vocab_size=STORYBOOK_VOCAB if config.dataset == "storybook" else GPT2_VOCAB)
