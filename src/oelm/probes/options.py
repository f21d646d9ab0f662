"""What `oelm probe` is asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oelm import variants
from oelm.config import RunConfig
from oelm.errors import UserError, known
from oelm.probes.tasks import TASKS


@dataclass(frozen=True)
class Probe:
    """Which variants learn what, and on how large a model."""

    variants: tuple[str, ...] = ("baseline", "oelm_v2")
    """Variants, by name or spec."""
    tasks: tuple[str, ...] = tuple(TASKS)
    """recall, induction, hops or memory."""
    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    """Each variant is judged at the best of these, on each task."""
    seeds: int = 1
    """Runs of each at each rate."""
    max_steps: int = 2000
    """Steps of each run."""
    batch_size: int = 64
    """Sequences per step."""
    d_model: int = 64
    """Width of the models; heads have 16 channels each."""
    num_layers: int = 2
    """Their layers."""
    positions: str = "rope"
    """learned or rope."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    out: str = "outputs/probes"
    """Folder for probes.json and probes.png; what is in it is not run again."""

    def __post_init__(self) -> None:
        for name in self.tasks:
            known("task", name, TASKS)
        if not 1 <= self.seeds <= 1000:
            raise UserError(f"--seeds {self.seeds} must lie between 1 and 1,000")
        if self.d_model < 16 or self.d_model % 16:
            raise UserError(f"--d_model {self.d_model} must be a multiple of 16")
        if not (self.variants and self.tasks and self.learning_rates):
            raise UserError("name at least one variant, one task and one learning rate")
        if len(set(self.learning_rates)) < len(self.learning_rates):
            raise UserError("--learning-rates names a rate twice")
        for variant in self.variants:
            self.config(variant, self.tasks[0], self.learning_rates[0], 0)

    @property
    def names(self) -> list[str]:
        """The variants, each by its name where it has one."""
        return list(dict.fromkeys(variants.name_of(variants.parse(variant)) for variant in self.variants))

    @property
    def path(self) -> Path:
        return Path(self.out) / "probes.json"

    def config(self, variant: str, task: str, rate: float, seed: int) -> RunConfig:
        """The run that stands for one of the probes."""
        return RunConfig(
            model_type=variant,
            vocab_size=TASKS[task].vocab_size,
            seq_len=TASKS[task].length - 1,
            d_model=self.d_model,
            num_layers=self.num_layers,
            num_heads=self.d_model // 16,
            d_ff=4 * self.d_model,
            positions=self.positions,
            max_steps=self.max_steps,
            batch_size=self.batch_size,
            max_lr=rate,
            seed=seed,
            device=self.device,
            use_amp=False,
            num_workers=0,
        ).resolved(TASKS[task].vocab_size)

    def shape(self) -> dict[str, Any]:
        """What all entries of a result file have in common."""
        apart = ("variants", "tasks", "learning_rates", "seeds", "device", "out")
        return {name: value for name, value in asdict(self).items() if name not in apart}
