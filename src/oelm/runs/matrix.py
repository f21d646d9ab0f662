"""What there is to run: the original study's seven experiments, each a function, and matrices of one's own.

A matrix is a YAML file. Its runs are all its variants on all its corpora with all its seeds:

    name: mine                          # the folder below outputs; without it, the file's name
    variants: [baseline, oelm_v2, headwise+trained]
    corpora: [wiki, reviews]            # without it, storybook
    learning_rates: [5e-4, 1e-3, 2e-3]  # one: taken as it is; several: each arm first finds its own
    seeds: 3                            # so many, from 0; or a list
    tuning: {steps: 2000, seed: 1000}   # of the runs that find a rate; without it, as long as the others
    settings:                           # any other field of a run
      preset: medium-512
      max_steps: 6000
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from oelm.config import LOADER, RunConfig
from oelm.data.corpora import NAMES as CORPORA
from oelm.data.meta import is_corpus
from oelm.errors import UserError, is_plain_name, known
from oelm.runs.document import Document

TUNING = "tuning"  # the folder of an experiment's runs that look for a learning rate
TUNING_SEED = 1000


@dataclass(frozen=True)
class Arm:
    """A variant on a corpus: a run for each seed at one rate, which is first looked for where there are several."""

    experiment: str
    config: RunConfig  # of any of its runs, but for seed, rate and place
    folder: Path
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    trials_folder: Path
    trial_steps: int
    trial_seed: int

    def trials(self) -> list[RunConfig]:
        """The runs that look for the rate, all of one length."""
        if len(self.rates) == 1:
            return []
        short = replace(self.config, max_steps=self.trial_steps, seed=self.trial_seed, trial=True, final_split="val")
        return [self._at(rate, short, self.trials_folder / f"lr-{rate:.12g}") for rate in self.rates]

    def runs(self, rate: float) -> list[RunConfig]:
        """The runs that count, at a rate."""
        tuned_from = str(self.trials_folder) if len(self.rates) > 1 else None
        return [
            self._at(rate, replace(self.config, seed=seed, tuned_from=tuned_from), self.folder / f"seed-{seed}")
            for seed in self.seeds
        ]

    def _at(self, rate: float, config: RunConfig, folder: Path) -> RunConfig:
        return replace(config, max_lr=rate, out_dir=str(folder))


def gpt_01(**changes: Any) -> RunConfig:
    return _study("tinystories", "baseline", 3e-4, 100_000, changes)


def gpt_02(**changes: Any) -> RunConfig:
    return _study("tinystories", "oelm_v2", 1e-3, 100_000, changes)


def gpt_03(**changes: Any) -> RunConfig:
    return _study("tinystories", "oelm_random", 1e-3, 100_000, changes)


def gpt_04(**changes: Any) -> RunConfig:
    return _study("openwebtext", "baseline", 3e-4, 150_000, changes)


def gpt_05(**changes: Any) -> RunConfig:
    return _study("openwebtext", "oelm_v2", 1e-3, 150_000, changes)


def gpt_06(**changes: Any) -> RunConfig:
    return _study("wikitext103", "baseline", 3e-4, 200_000, changes)


def gpt_07(**changes: Any) -> RunConfig:
    return _study("wikitext103", "oelm_v2", 1e-3, 200_000, changes)


def _study(dataset: str, variant: str, max_lr: float, max_steps: int, changes: Mapping[str, Any]) -> RunConfig:
    """An experiment as the study ran it, to the letter."""
    fields = {"recipe": "study", "preset": "medium-512", "dataset": dataset, "max_lr": max_lr, "max_steps": max_steps}
    config = RunConfig(**{**fields, "model_type": variant, **changes})
    if "val_interval" not in changes:  # a rehearsal has its ten validations, too
        config = replace(config, val_interval=min(config.val_interval or 1, max(1, config.max_steps // 10)))
    return config


EXPERIMENTS: dict[str, Callable[..., RunConfig]] = {
    "GPT-01": gpt_01,
    "GPT-02": gpt_02,
    "GPT-03": gpt_03,
    "GPT-04": gpt_04,
    "GPT-05": gpt_05,
    "GPT-06": gpt_06,
    "GPT-07": gpt_07,
}

# The perplexities that the study reported: the best ones seen on the way, one seed, rates not tuned.
REPORTED = {"GPT-01": 4.27, "GPT-02": 4.69, "GPT-03": 4.97, "GPT-04": 47.24, "GPT-05": 54.29}


def arms_of(
    names: Sequence[str], outputs: Path, data_dir: Path, seeds: int | None, changes: Mapping[str, Any]
) -> list[Arm]:
    """The arms of experiments by name, of all of them (`all`), or of the matrix in a file."""
    _refuse_what_is_fixed(changes)
    arms: list[Arm] = []
    wanted = [each for name in names for each in (EXPERIMENTS if name == "all" else [name])]
    for name in dict.fromkeys(wanted):
        if name.endswith((".yaml", ".yml")):
            arms += read_matrix(Path(name), outputs, data_dir, seeds, changes)
        else:
            known("experiment", name, EXPERIMENTS, otherwise="; or all, or the .yaml file of a matrix")
            arms.append(_experiment(name, outputs, data_dir, seeds, changes))
    if not arms:
        raise UserError(f"name an experiment: {', '.join(EXPERIMENTS)}, all, or the .yaml file of a matrix")
    folders = [arm.folder for arm in arms]
    if twice := {str(folder) for folder in folders if folders.count(folder) > 1}:
        raise UserError(f"two of the experiments would write to {', '.join(sorted(twice))}; give them other names")
    return arms


def overrides(settings: Sequence[str]) -> dict[str, Any]:
    """field=value pairs, each value read as YAML has it."""
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting} must be field=value, such as --set max_steps=2000")
        try:
            changes[name.strip().replace("-", "_")] = yaml.load(value, LOADER)
        except yaml.YAMLError:
            raise UserError(f"--set {setting}: the value cannot be read") from None
    return changes


def _refuse_what_is_fixed(changes: Mapping[str, Any]) -> None:
    for name in ("model_type", "out_dir", "data_path", "resume", "tuned_from", "trial"):
        if name in changes:
            where = {"out_dir": "; --out-dir says where all runs go", "data_path": "; use dataset and --data-dir"}
            raise UserError(f"--set {name}: an experiment sets that itself{where.get(name, '')}")


def _experiment(name: str, outputs: Path, data_dir: Path, seeds: int | None, changes: Mapping[str, Any]) -> Arm:
    config = EXPERIMENTS[name](**changes)
    return Arm(
        experiment=name,
        config=replace(config, data_path=str(data_dir / config.dataset)),
        folder=outputs / name / config.model_type,
        seeds=tuple(range(config.seed, config.seed + _count(1 if seeds is None else seeds))),
        rates=(config.max_lr,),
        trials_folder=outputs / name / TUNING,
        trial_steps=config.max_steps,
        trial_seed=TUNING_SEED,
    )


def _count(seeds: int) -> int:
    if not 1 <= seeds <= 10_000:
        raise UserError(f"--seeds {seeds} must lie between 1 and 10,000")
    return seeds


FIELDS = ("name", "variants", "corpora", "learning_rates", "seeds", "tuning", "settings")
NOT_A_SETTING = {
    "model_type": "variants",
    "dataset": "corpora",
    "seed": "seeds",
    "max_lr": "learning_rates",
}


def read_matrix(
    path: Path, outputs: Path, data_dir: Path | None, seeds: int | None = None, changes: Mapping[str, Any] | None = None
) -> list[Arm]:
    """The arms of a matrix file; what is wrong in it is named by line and field.

    data_dir: where the corpora must be; None: they are wherever they were when the runs were made.
    """
    file = Document.read(path)
    file.only(FIELDS)
    name = file.text("name", default=path.stem)
    if not is_plain_name(name) or name in (*EXPERIMENTS, "all"):
        raise file.error("name", f"{name!r} cannot be the name of a matrix")
    names, corpora = file.texts("variants"), file.texts("corpora", default=["storybook"])
    rates = file.numbers("learning_rates", default=[RunConfig.max_lr])
    chosen = tuple(range(_count(seeds))) if seeds is not None else file.seeds("seeds", default=1)
    settings = {**_settings(file), **_changes(changes or {}, path)}
    trial_steps, trial_seed = _tuning(file, chosen, rates)
    arms = []
    for i, corpus in enumerate(corpora):
        if not is_plain_name(corpus):
            raise file.error("corpora", f"{corpus!r} is not the name of a prepared corpus", i)
        folder = (data_dir or Path("data")) / corpus
        if data_dir is not None and not is_corpus(folder):
            source = "" if corpus in CORPORA else " --source FILES"
            raise file.error("corpora", f"there is no prepared corpus {folder}; oelm prepare {corpus}{source}", i)
        for j, variant in enumerate(names):
            config = _config(file, settings, {"model_type": (j, variant), "dataset": (i, corpus)}, rates, trial_steps)
            arm = Path(corpus, variant) if len(corpora) > 1 else Path(variant)
            arms.append(
                Arm(
                    experiment=name,
                    config=replace(config, data_path=str(folder)),
                    folder=outputs / name / arm,
                    seeds=chosen,
                    rates=tuple(rates),
                    trials_folder=outputs / name / TUNING / arm,
                    trial_steps=trial_steps or config.max_steps,
                    trial_seed=trial_seed,
                )
            )
    _refuse_twins(file, [arm.config for arm in arms[: len(names)]])
    return arms


def _refuse_twins(file: Document, configs: Sequence[RunConfig]) -> None:
    """Two ways to write one variant would be trained twice, and could not be told apart."""
    seen: dict[str, str] = {}
    for i, config in enumerate(configs):
        spec = config.spec_of(config.variant)
        if spec in seen:
            raise file.error("variants", f"{config.model_type} is the same as {seen[spec]}", i)
        seen[spec] = config.model_type


def _settings(file: Document) -> dict[str, Any]:
    settings = file.mapping("settings")
    for name in settings:
        if name in NOT_A_SETTING:
            raise file.error("settings", f"{name} does not belong here but under {NOT_A_SETTING[name]}", name)
        if name in ("out_dir", "data_path", "resume", "tuned_from", "trial"):
            raise file.error("settings", f"a matrix sets {name} itself", name)
    return settings


def _changes(changes: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    for name in changes:
        if name in NOT_A_SETTING:
            raise UserError(f"--set {name}: {path} sets that, under {NOT_A_SETTING[name]}")
    return changes


def _tuning(file: Document, seeds: Sequence[int], rates: Sequence[float]) -> tuple[int | None, int]:
    """How many steps the runs that look for a rate have, and their seed, which no run that counts may have."""
    tuning = file.mapping("tuning")
    if tuning and len(rates) == 1:
        raise file.error("tuning", "of a single learning rate nothing is tuned: give several, or drop this")
    for name, value in tuning.items():
        if name not in ("steps", "seed"):
            raise file.error("tuning", f"there are steps and seed, not {name}", name)
        if not isinstance(value, int) or isinstance(value, bool) or value < (name == "steps"):
            raise file.error("tuning", f"{name} must be a whole number, not {value!r}", name)
    seed = tuning.get("seed", TUNING_SEED)
    if seed in seeds:
        raise file.error("tuning", f"seed {seed} is among the seeds that count, which must not be looked at before")
    return tuning.get("steps"), seed


def _config(
    file: Document,
    settings: Mapping[str, Any],
    chosen: Mapping[str, tuple[int, str]],
    rates: Sequence[float],
    trial_steps: int | None,
) -> RunConfig:
    """The configuration of an arm, tried at every rate; a mistake is laid to the line that it comes from."""
    fields = {**settings, **{name: value for name, (_, value) in chosen.items()}}
    for i, rate in enumerate(rates):
        try:
            config = RunConfig(**{**fields, "max_lr": rate})
            replace(config, max_steps=trial_steps or config.max_steps)
        except UserError as error:
            lines = {
                "model_type": ("variants", chosen["model_type"][0]),
                "dataset": ("corpora", chosen["dataset"][0]),
                "max_lr": ("learning_rates", i),
            }
            raise file.blame(str(error), {**lines, **{name: ("settings", name) for name in settings}}) from None
    return config
