"""A run as dataclasses: every field is documented once, here, and is a flag, a YAML key and a Python keyword.

Precedence: defaults < recipe < preset < YAML file < flags. The fields of `Model` and `Training` are the run's
identity: they change the result and are hashed into its id. Those of `Operation` are not, and may change on resume.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from oelm import variants
from oelm.errors import KINDS, UserError, is_number, is_plain_name, is_truth, is_whole, known
from oelm.specs import Variant


@dataclass(frozen=True)
class Model:
    """The network, and what is done to its Query and Key projections."""

    model_type: str = "baseline"
    """Variant: baseline, baseline_shift, baseline_vectors, oelm_v3, oelm_v3_lite, oelm_slices, oelm_v2, oelm_random,
    oelm_matched, oelm_global, orthogonal_trainable, oelm_shuffle, identity_q, thin_keys, or a spec such as
    "headwise+lowrank(32),k+shift", "q=headwise,k=normal+trained" or "normal+freeze(3000)"."""
    preset: str = "nano"
    """A named size that sets the fields below: nano, mini or medium-512."""
    vocab_size: int = 0
    """Tokens in the vocabulary. 0: as many as the corpus's tokenizer has."""
    d_model: int = 64
    """Width of the residual stream."""
    num_layers: int = 2
    """Transformer blocks."""
    num_heads: int = 2
    """Attention heads per block; must divide d_model."""
    d_ff: int = 256
    """Width of the feed-forward layer."""
    seq_len: int = 128
    """Tokens per training sequence."""
    positions: str = "rope"
    """How a token knows its place: learned (a table of vectors) or rope (rotated queries and keys)."""
    dropout: float = 0.0
    """Share of activations dropped in training."""


@dataclass(frozen=True)
class Training:
    """What is optimised, on how much, and how."""

    recipe: str = "fair"
    """Named settings: fair (the modern defaults on which claims are made) or study (the original's, to the letter)."""
    max_steps: int = 1000
    """Optimisation steps."""
    batch_size: int = 16
    """Sequences per step, over all devices and micro-steps together."""
    max_lr: float = 1e-3
    """Learning rate at the end of the warm-up."""
    min_lr: float | None = None
    """Learning rate at which the cosine would arrive one step after the last. None: a tenth of max_lr."""
    layer_lr: float = 1.0
    """Learning rate of the last block as a multiple of the first one's; it changes evenly from block to block."""
    warmup_steps: int | None = None
    """Steps of linear warm-up. None: 2 % of the steps, but at least 100."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.95
    """AdamW's decay of the second moment."""
    weight_decay: float = 0.1
    """AdamW's weight decay. A frozen matrix never decays."""
    decay: str = "matrices"
    """What decays: matrices (not biases and norms) or all."""
    grad_clip: float = 1.0
    """Largest norm of the gradient; 0 clips nothing."""
    use_amp: bool = True
    """Mixed precision on a GPU. A CPU always computes in fp32."""
    amp_dtype: str = "bf16"
    """The lower precision of use_amp: bf16 or fp16."""
    val_tokens: int | None = 262_144
    """Tokens scored at each validation on the way, always the same ones. None: the whole validation set. The final
    score is on the whole set in any case."""
    final_split: str = "val"
    """What the final score is on: val; or test, which nothing else ever looks at, for the runs of a claim."""
    seed: int = 0
    """Seed of the weights, the order of the data and dropout."""


@dataclass(frozen=True)
class Operation:
    """Where and how it runs. None of these changes what is trained; all of them may change on resume."""

    dataset: str = "storybook"
    """Name of a prepared corpus (see oelm prepare)."""
    data_path: str | None = None
    """Folder of the prepared corpus. None: data/DATASET."""
    out_dir: str | None = None
    """Run folder. None: outputs/DATASET-PRESET/VARIANT/seed-SEED."""
    resume: str = "auto"
    """auto: go on from the last checkpoint, if there is one. never: refuse a folder that holds a run. Or the path of a
    checkpoint folder (…/checkpoints/step-N) to go back to."""
    device: str = "auto"
    """auto (a GPU if there is one), cpu, cuda or cuda:N."""
    engine: str = "auto"
    """How a step is executed: eager, compile (torch.compile), graph (the whole step as one CUDA graph), or auto (the
    fastest that the device and the other settings allow)."""
    deterministic: bool = False
    """On a GPU: use only deterministic kernels, so that a resumed run ends with the same bytes. Slower."""
    accumulation: int = 1
    """Micro-steps that the batch is cut into when it does not fit into memory."""
    num_workers: int = 1
    """Threads that gather batches ahead of the step. 0: gather when needed."""
    log_interval: int = 10
    """Steps between two lines of metrics."""
    val_interval: int | None = None
    """Steps between two validations. None: 500, but at least ten validations in a run."""
    save_interval: int = 1000
    """Steps between two checkpoints."""
    tuned_from: str | None = None
    """Folder of the runs among which max_lr was the best rate; the manifest records their rates, steps and ids.
    None: max_lr is taken as given."""
    trial: bool = False
    """This run only serves to find a learning rate: compare and report do not judge it."""
    track: str | None = None
    """Send the run to a tracker, too, beside TensorBoard's files in the run folder: trackio or wandb. None: to none."""


@dataclass(frozen=True, init=False)
class RunConfig(Operation, Training, Model):
    """Everything that defines a run, from layers, lowest first: defaults, recipe, preset, YAML file, given fields."""

    def __init__(self, file: str | Path | None = None, **given: Any) -> None:
        values = layered(file, given)
        for field in fields(RunConfig):
            object.__setattr__(self, field.name, values.get(field.name, field.default))
        check(self)

    def with_fields(self, **given: Any) -> RunConfig:
        """The same run but for some fields; what a recipe or a preset has set is as fixed as what a file has."""
        for name in LAYERS:
            _refuse_other_layer(f"the configuration of {self.model_type}", name, getattr(self, name), given)
        return replace(self, **given)

    @property
    def variant(self) -> Variant:
        return variants.parse(self.model_type)

    def spec_of(self, variant: Variant) -> str:
        """A variant in a model of this shape, with one spelling for all that come to the same."""
        return str(variant.in_model(self.d_model, self.num_layers))

    def decay_of(self, dimensions: int) -> float:
        """The weight decay of a parameter that trains, by its number of dimensions."""
        return self.weight_decay if self.decay == "all" or dimensions >= 2 else 0.0

    @property
    def goes_back(self) -> bool:
        """Whether the run is to go on from a checkpoint of the user's choice."""
        return self.resume not in ("auto", "never")

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len

    @property
    def data_folder(self) -> Path:
        return Path(self.data_path) if self.data_path else Path("data") / self.dataset

    @property
    def run_folder(self) -> Path:
        if self.out_dir:
            return Path(self.out_dir)
        corpus = self.data_folder.resolve().name
        return Path("outputs") / f"{corpus}-{self.preset}" / self.model_type / f"seed-{self.seed}"

    def resolved(self, vocab_size: int) -> RunConfig:
        """The same run with every 'None: …' rule written out as a number."""
        warmup = min(max(100, round(0.02 * self.max_steps)), self.max_steps)
        return replace(
            self,
            vocab_size=self.vocab_size or vocab_size,
            warmup_steps=warmup if self.warmup_steps is None else self.warmup_steps,
            min_lr=self.max_lr / 10 if self.min_lr is None else self.min_lr,
            val_interval=self.val_interval or min(500, max(1, self.max_steps // 10)),
        )

    def decays_like(self, other: RunConfig) -> bool:
        """Whether the rate falls to the same value in both, or to the same share of the largest."""
        mine, theirs = ((c.max_lr / 10 if c.min_lr is None else c.min_lr) for c in (self, other))
        return math.isclose(mine, theirs) or math.isclose(mine * other.max_lr, theirs * self.max_lr)

    def identity(self) -> dict[str, Any]:
        """The fields that change the result."""
        operational = {f.name for f in fields(Operation)}
        return {name: value for name, value in asdict(self).items() if name not in operational}

    def to_yaml(self) -> str:
        lines: list[str] = []
        for section in (Model, Training, Operation):
            # `resume` is a wish for one start: kept, it would be repeated by whoever starts from this file.
            values = {f.name: getattr(self, f.name) for f in fields(section) if f.name != "resume"}
            lines += [f"# {' '.join((section.__doc__ or '').split())}", yaml.safe_dump(values, sort_keys=False)]
        return "\n".join(lines)


def layered(file: str | Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that differ from the defaults, lowest layer first: recipe, preset, YAML file, given fields."""
    given = _typed(given)
    from_file = read_yaml(Path(file)) if file is not None else {}
    for name in LAYERS:
        if name in from_file:
            _refuse_other_layer(str(file), name, from_file[name], given)
    chosen = {**from_file, **given}
    recipe = RECIPES[known("recipe", chosen.get("recipe", RunConfig.recipe), RECIPES)]
    preset = PRESETS[known("preset", chosen.get("preset", RunConfig.preset), PRESETS)]
    return {**recipe, **preset, **chosen}


def _refuse_other_layer(where: str, name: str, fixed: Any, given: Mapping[str, Any]) -> None:
    if given.get(name, fixed) != fixed:
        raise UserError(
            f"{where} already fixes {name}: {fixed}, so --{name} {given[name]} could not take effect; "
            f"drop one of the two"
        )


LAYERS = ("recipe", "preset")  # fields that stand for others


def run_id(config: RunConfig, data_hashes: Mapping[str, str]) -> str:
    """Two runs with one id are the same experiment: same settings, same bytes of data.

    A field at its default says nothing, so that a field which is new in this version changes no id of an older one.
    """
    defaults = {f.name: f.default for f in fields(RunConfig)}
    chosen = {name: value for name, value in config.identity().items() if value != defaults[name]}
    content = json.dumps([chosen, dict(data_hashes)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


RECIPES: dict[str, dict[str, Any]] = {
    "fair": {},
    "study": {
        "batch_size": 8,
        "dropout": 0.1,
        "max_lr": 3e-4,
        "min_lr": 0.0,
        "warmup_steps": 1000,
        "beta2": 0.999,
        "weight_decay": 0.01,
        "decay": "all",
        "amp_dtype": "fp16",
        "val_tokens": None,
        "val_interval": 1000,
        "save_interval": 5000,
        "seed": 42,
    },
}

PRESETS: dict[str, dict[str, Any]] = {
    "nano": {"d_model": 64, "num_layers": 2, "num_heads": 2, "d_ff": 256, "seq_len": 128, "positions": "rope"},
    "mini": {"d_model": 256, "num_layers": 4, "num_heads": 4, "d_ff": 1024, "seq_len": 256, "positions": "learned"},
    "medium-512": {
        "vocab_size": 50257,
        "d_model": 512,
        "num_layers": 6,
        "num_heads": 8,
        "d_ff": 2048,
        "seq_len": 512,
        "positions": "learned",
    },
}

# The safe loader in C where there is one: hundreds of run folders are read at once.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

TRACKERS = ("trackio", "wandb")

CHOICES: dict[str, tuple[str, ...]] = {
    "positions": ("learned", "rope"),
    "decay": ("matrices", "all"),
    "amp_dtype": ("bf16", "fp16"),
    "final_split": ("val", "test"),
    "engine": ("auto", "eager", "compile", "graph"),
}

RANGES: dict[str, tuple[float, float]] = {
    "vocab_size": (0, 2**31),
    "d_model": (1, 2**20),
    "num_layers": (1, 10_000),
    "num_heads": (1, 2**20),
    "d_ff": (1, 2**24),
    "seq_len": (1, 2**24),
    "dropout": (0, 0.999),
    "max_steps": (1, 10**10),
    "batch_size": (1, 10**7),
    "max_lr": (1e-12, 100),
    "min_lr": (0, 100),
    "layer_lr": (1e-6, 1e6),
    "warmup_steps": (0, 10**10),
    "beta1": (0, 0.999999),
    "beta2": (0, 0.9999999),
    "weight_decay": (0, 100),
    "grad_clip": (0, 10**9),
    "val_tokens": (1, 10**13),
    "seed": (0, 2**63 - 1),
    "accumulation": (1, 10**7),
    "num_workers": (0, 256),
    "log_interval": (1, 10**10),
    "val_interval": (1, 10**10),
    "save_interval": (1, 10**10),
}


def check(config: RunConfig) -> None:
    """Refuses names and values that cannot be meant, one clear line each."""
    for name, (low, high) in RANGES.items():
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise UserError(f"--{name} {value} is out of range: it must lie between {low:,} and {high:,}")
    for name, choices in CHOICES.items():
        known(name, getattr(config, name), choices)
    if config.track is not None:
        known("tracker", config.track, TRACKERS)
    if not is_plain_name(config.dataset):
        raise UserError(f"--dataset {config.dataset!r} must be a name; for the folder of a corpus use --data_path")
    known("recipe", config.recipe, RECIPES)
    known("preset", config.preset, PRESETS)
    if config.d_model % config.num_heads:
        raise UserError(
            f"--num_heads {config.num_heads} does not divide --d_model {config.d_model}; "
            f"nearest head counts that do: {_nearest_divisors(config.d_model, config.num_heads)}"
        )
    _check_variant(config)
    if config.min_lr is not None and config.min_lr > config.max_lr:
        raise UserError(f"--min_lr {config.min_lr:g} is above --max_lr {config.max_lr:g}")
    if config.warmup_steps is not None and config.warmup_steps > config.max_steps:
        by_recipe = config.warmup_steps == RECIPES[config.recipe].get("warmup_steps")
        origin = f" (as recipe {config.recipe} has it)" if by_recipe else ""
        raise UserError(
            f"--warmup_steps {config.warmup_steps}{origin} is more than --max_steps {config.max_steps}; "
            f"set --warmup_steps to at most that, or train longer"
        )
    if config.layer_lr != 1 and config.num_layers == 1:
        raise UserError(f"--layer_lr {config.layer_lr:g} has no effect on a single layer")
    if config.batch_size % config.accumulation:
        raise UserError(f"--accumulation {config.accumulation} does not divide --batch_size {config.batch_size}")
    for name in ("data_path", "out_dir"):
        if "\0" in (getattr(config, name) or ""):
            raise UserError(f"--{name} {getattr(config, name)!r} is no path")
    if not re.fullmatch(r"auto|cpu|cuda|cuda:[0-9]+", config.device):
        raise UserError(f"--device {config.device} is unknown: use auto, cpu, cuda or cuda:N")


def _check_variant(config: RunConfig) -> None:
    """Refuses a variant that does not go with the shape of the model or the length of the run."""

    def wrong(message: str) -> UserError:
        return UserError(f"--model_type {config.model_type}: {message}")

    head, layers, heads = config.d_model // config.num_heads, config.num_layers, config.num_heads
    thin = config.variant.q.thin
    if head % thin:
        raise wrong(f"thin({thin}) does not divide the {head} channels of a head (d_model / num_heads)")
    if config.positions == "rope" and (head // thin) % 2:
        raise UserError("--positions rope needs an even number of channels per head of Q and K (d_model / num_heads)")
    if config.variant.k.bias and config.positions != "rope":
        raise wrong(
            "a bias of K adds the same to all logits of a query, so it has no effect without --positions rope; add that"
        )
    for side in config.variant.sides.values():
        if side.layers and side.layers[1] >= layers:
            raise wrong(f"layer {side.layers[1]} is beyond the last one, {layers - 1}")
        if side.heads < 100 and not 0 < round(side.heads / 100 * heads) < heads:
            raise wrong(f"{side.heads} % of {heads} heads is {'all' if side.heads > 50 else 'none'} of them")
        if (rank := max(side.rank(name, config.d_model) for name in ("lowrank", "residual"))) > config.d_model:
            raise wrong(f"a correction of rank {rank} is wider than the model, {config.d_model}")
        if side.when.kind == "every" and side.when.number >= config.max_steps:
            raise wrong(f"of {config.max_steps:,} steps, {side.when} would update it in the first alone")
        for layer in range(layers):
            when = side.in_layer(layer, layers).when
            if (change := when.change(config.max_steps)) and change >= config.max_steps:
                raise wrong(
                    f"the run ends after {config.max_steps:,} steps, so there would be nothing to {when.kind} "
                    f"at step {change:,}"
                )


def _nearest_divisors(number: int, wanted: int) -> str:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return ", ".join(map(str, sorted(sorted(divisors, key=lambda d: abs(d - wanted))[:3])))


def read_yaml(path: Path) -> dict[str, Any]:
    """The fields that a YAML file sets, each of its field's type."""
    try:
        text = path.read_text(encoding="utf-8")
        content, node = yaml.load(text, LOADER), yaml.compose(text, LOADER)
    except FileNotFoundError:
        raise UserError(f"--config {path}: no such file") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"--config {path} is not readable YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"--config {path} must hold 'field: value' lines")
    keys = [key.value for key, _ in node.value]
    if twice := [key for key in content if keys.count(str(key)) > 1]:
        raise UserError(f"--config {path} sets {twice[0]} more than once; keep one of the lines")
    return _typed(content, where=f" in {path}")


def _typed(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Values by field name, each made its field's type."""
    hints = _hints()
    return {
        name: _convert(known("field", name, hints, where), value, hints[name], where) for name, value in values.items()
    }


@functools.cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(RunConfig)


def _convert(name: str, value: Any, hint: Any, where: str) -> Any:
    """YAML reads 1e-3 as a string and 1 as an integer where a float is meant, Python has paths of its own and NumPy
    numbers; anything else must fit as it is."""
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(value) in allowed:
        return value
    if int in allowed and is_whole(value):
        return int(value)
    if float in allowed and (is_number(value) or isinstance(value, str)):
        with suppress(ValueError, OverflowError):
            return float(value)
    if bool in allowed and is_truth(value):
        return bool(value)
    if str in allowed and isinstance(value, Path | str):  # NumPy's strings are some
        return str(value)
    wanted = " or ".join(KINDS[t] for t in allowed if t is not type(None))
    raise UserError(f"{name}{where} must be {wanted}, not {value!r}")
