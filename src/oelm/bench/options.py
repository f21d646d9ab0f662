"""What `oelm bench` can be asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm.config import CHOICES, RunConfig
from oelm.errors import UserError, known


@dataclass(frozen=True)
class Bench:
    """What is measured, and how."""

    preset: str = "medium-512"
    """The size of the model: nano, mini or medium-512."""
    variants: tuple[str, ...] = ("baseline", "oelm_v2")
    """Variants of ours, as --model_type takes them; the first is what the others are compared with."""
    engines: tuple[str, ...] = ("auto",)
    """Engines that each variant is run with: auto, eager, compile or graph."""
    nanogpt: str | None = None
    """Path of a nanoGPT checkout, to measure its loop as well."""
    huggingface: bool = False
    """Measure transformers' Trainer as well."""
    eager_peers: bool = False
    """Run the peers without torch.compile (always so on a CPU)."""
    batch_size: int = 8
    """Sequences per step."""
    seq_len: int | None = None
    """Tokens per sequence. None: the preset's."""
    d_model: int | None = None
    """Width of the model, with heads of 64 and a feed-forward layer of four times the width. None: the preset's."""
    positions: str | None = None
    """learned or rope. None: the preset's. The peers' are learned."""
    dataset: str = "storybook"
    """Name of a prepared corpus; a step's time hardly depends on its text."""
    data_path: str | None = None
    """Folder of the prepared corpus. None: data/DATASET."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:N."""
    rounds: int = 6
    """Rounds in which all take turns, forwards and backwards: an even number."""
    seconds: float = 0.5
    """How long each runs per round, about."""
    out: str | None = None
    """Result file. None: benchmarks/results/bench-PRESET-BATCHxLENGTH.json."""

    def __post_init__(self) -> None:
        for engine in self.engines:
            known("engine", engine, CHOICES["engine"])
        if not (self.variants and self.engines) and not (self.nanogpt or self.huggingface):
            raise UserError("there is nothing to measure: name at least one of --variants, and one of --engines")
        if self.rounds < 2 or self.rounds % 2 or not 0 < self.seconds < 1e6:
            raise UserError("--rounds must be an even number from 2, and --seconds above 0")

    def config(self, variant: str, engine: str = "auto") -> RunConfig:
        """The run that a contender of ours is at the beginning of."""
        given: dict[str, Any] = {"batch_size": self.batch_size, "model_type": variant, "engine": engine}
        given |= {"dataset": self.dataset, "data_path": self.data_path, "device": self.device, "max_steps": 10**9}
        given |= {name: value for name in ("seq_len", "positions") if (value := getattr(self, name)) is not None}
        if self.d_model is not None:
            given |= {"d_model": self.d_model, "d_ff": 4 * self.d_model, "num_heads": max(1, self.d_model // 64)}
        return RunConfig(preset=self.preset, **given)

    @property
    def path(self) -> Path:
        config = self.config("baseline")
        name = f"bench-{self.preset}-{config.batch_size}x{config.seq_len}.json"
        return Path(self.out) if self.out else Path("benchmarks") / "results" / name
