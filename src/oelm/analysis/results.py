"""Finished runs as results, read from their folders; and which of them were given the same task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from oelm import variants
from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.runfolder import HEADS, RunFolder, fault_in
from oelm.wording import Said

UNFINISHED = "{path} is not finished ({state}); finish it or leave it out"

# What may differ between the runs of one comparison without a word: what is compared, and what it is averaged over.
MEANT = ("model_type", "seed", "max_lr", "min_lr")


@dataclass(frozen=True)
class Result:
    """One finished run, as read from its folder."""

    folder: RunFolder
    config: RunConfig
    manifest: dict[str, Any]
    final: dict[str, Any]
    scores: list[dict[str, Any]]  # the validations on the way
    timing: dict[str, Any]
    status: dict[str, Any]

    @property
    def loss(self) -> float:
        return float(self.final["loss"])

    @property
    def variant(self) -> str:
        return variants.name_of(self.config.variant)

    @property
    def spec(self) -> str:
        """What two variants have in common that come to the same in a model of this shape."""
        return self.config.spec_of(self.config.variant)

    @property
    def corpus(self) -> str:
        """The name of the corpus."""
        return str(self.manifest["data"]["dataset"])

    @property
    def tuning(self) -> dict[str, Any]:
        """How the learning rate was chosen."""
        tuning: dict[str, Any] = self.manifest["learning_rate"]
        return tuning

    @property
    def memory(self) -> float | None:
        """The most bytes that the run held on its GPU; None on a CPU."""
        value = self.timing.get("peak_memory_bytes")
        return float(value) if isinstance(value, int | float) else None

    @property
    def device(self) -> tuple[str, str]:
        """The host that the run was last on, and which of its devices."""
        return self.status["host"], str(self.status.get("device"))

    @property
    def last_session(self) -> tuple[float, float]:
        """When its last session began and ended, in seconds; where a run has not noted it, one of no length."""
        ended = float(self.status["heartbeat"])
        try:
            return datetime.strptime(self.manifest["sessions"][-1]["started"], "%Y-%m-%dT%H:%M:%S%z").timestamp(), ended
        except (LookupError, TypeError, ValueError):
            return ended, ended

    def seconds_to(self, loss: float) -> float | None:
        """How long the run took, all in all, until a validation on the way was as good as this."""
        return next((score["elapsed"] for score in self.scores if score["loss"] <= loss), None)

    def task(self) -> dict[str, Any]:
        """What makes runs comparable: the bytes they learnt from, the tokens they saw, what they were scored on."""
        hashes, split = self.manifest["data"]["sha256"], self.config.final_split
        return {
            "training data": hashes["train"][:12],
            "validation data": hashes["val"][:12],
            "tokens seen": self.final["tokens_seen"],
            "scored split": f"{split} {hashes.get(split, '')[:12]}",
            "tokens scored": self.final["tokens_scored"],
            "sequence length": self.config.seq_len,
        }

    def settings(self) -> dict[str, Any]:
        """What ought to be the same in all the runs of a comparison."""
        return {name: value for name, value in self.config.identity().items() if name not in MEANT}


def read_result(folder: RunFolder) -> Result:
    (config, manifest), scores, status = folder.identified(), folder.scores(), folder.status()
    if (state := status["state"]) != "finished":
        raise UserError(Said(UNFINISHED, path=folder.path, state=state))
    final = next((score for score in reversed(scores) if score["final"]), None)
    if final is None:
        raise UserError(f"{folder.evals} is damaged: the final score is missing; leave the run out")
    if "heads" in final and (fault := fault_in(final["heads"], HEADS, "heads")):
        raise UserError(f"{folder.evals} is damaged: {fault}; leave the run out")
    if not manifest["parameters"]["total"] > 0:
        raise UserError(f"{folder.path}/manifest.json is damaged: a model has parameters; leave the run out")
    timing = folder.timing()
    if not timing["median_step_time"] > 0:
        raise UserError(f"{folder.path}/timing_stats.json is damaged: no step takes no time; leave the run out")
    return Result(folder, config, manifest, final, [score for score in scores if not score["final"]], timing, status)


@dataclass(frozen=True)
class LeftOut:
    """A run that says nothing yet, or nothing that can be read, and why."""

    folder: RunFolder
    reason: str
    twin: bool = False  # of another run, which is counted

    def __str__(self) -> str:
        path = str(self.folder.path)
        return self.reason if path in self.reason else f"{path}: {self.reason}"


def read_results(folders: Iterable[RunFolder]) -> tuple[list[Result], list[LeftOut]]:
    """The runs that are finished, and those that are not, or cannot be read."""
    results, left_out = [], []
    for folder in folders:
        try:
            results.append(read_result(folder))
        except Exception as error:  # whatever is wrong with one folder, the others are to be judged
            said = error.args[0] if error.args and isinstance(error.args[0], Said) else str(error)
            left_out.append(LeftOut(folder, said or type(error).__name__))
    return results, left_out


def by_task(results: Sequence[Result]) -> list[list[Result]]:
    """Results that may be compared with each other: of one task and one setting."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(repr([result.task(), result.settings()]), []).append(result)
    return list(groups.values())


def without_trials(results: Sequence[Result]) -> list[Result]:
    """Results without those runs that only serve to find another's learning rate: their seeds are looked at."""
    trials = {run_id for result in results for run_id in result.tuning.get("run_ids", [])}
    return [result for result in results if not result.config.trial and result.manifest["run_id"] not in trials]
