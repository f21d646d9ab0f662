"""A run in progress: what it is made of, where it stands, and how to do each part of the loop."""

from __future__ import annotations

import math
import shlex
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oelm.config import RunConfig, run_id
from oelm.data.batches import Batches, Corpus
from oelm.data.tokenizer import TOKENIZER_FILE, open_tokenizer
from oelm.errors import DivergedError, InterruptedRunError, UserError
from oelm.model.generate import generate
from oelm.model.gpt import GPT
from oelm.runfolder import Heart, RunFolder, append_line, cut_lines, write_json, write_whole
from oelm.training import audit, checkpoint
from oelm.training.background import Background
from oelm.training.clock import Clock, StepTimer
from oelm.training.evaluate import diagnose, evaluate, head_scores
from oelm.training.manifest import device_id, device_name, manifest, session
from oelm.training.observe import Observer, Progress
from oelm.training.resume import choose_checkpoint
from oelm.training.schedule import changes, frozen_matrices, learning_rate
from oelm.training.step import build_engine, compiling
from oelm.training.track import Trackers
from oelm.training.world import World
from oelm.wording import formatted, perplexity, shown

SECONDS_BETWEEN_QUESTIONS = 2.0
SPLITS_IN_WORDS = {"val": "validation", "test": "test"}


@dataclass
class Run:
    """A run in progress: what it is made of and where it stands."""

    config: RunConfig
    world: World
    folder: RunFolder
    corpus: Corpus
    observer: Observer
    command: list[str]

    step: int = 0
    best: float | None = None
    last_val: float | None = None
    clock: Clock = field(default_factory=Clock)
    seconds_per_step: float = 0.0
    due: bool = False  # whether what follows the last step (validation, metrics, saving) is yet to be done
    stop_asked: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        config = self.config
        self.train_tokens, self.val_tokens = self.corpus.split("train"), self.corpus.split("val")
        self.final_tokens = self.val_tokens if config.final_split == "val" else self.corpus.split(config.final_split)
        self.batches = Batches(self.train_tokens, config.seq_len, config.batch_size, config.seed)
        self.changes = changes(config)
        self.timer = StepTimer(self.world.device)
        self.background = Background(self.world.device)
        self.id = run_id(config, self.corpus.hashes)
        self.heart: Heart | None = None
        self.trackers = Trackers(self.say)
        self._since_log: list[tuple[float, float]] = []  # losses and gradient norms not yet in a line of metrics

    def finished_before(self) -> bool:
        if self.config.goes_back or not self.folder.exists() or self.folder.status()["state"] != "finished":
            return False
        self.say(f"{self.folder.path} is finished already: nothing to do")
        return True

    def start(self) -> None:
        """Builds the model, goes to where the run stood, and says what will run."""
        with self.clock.part("startup"):
            self.engine = build_engine(self.config, self.world, self.batches)
            model = self.engine.model
            self.births = {name: w.detach().cpu().clone() for name, w in model.matrices().items()}
            self._claim(model)
            path = choose_checkpoint(self.config, self.folder, self.id, model, self.say) if self.world.leads else None
            # Up to here, what cannot be done is refused, and the status of a run that was there stands.
            if self.world.leads:
                self.heart = Heart(self.folder, self.config.max_steps, device_id(self.world.device))
            self._restore(model, path)
        if self.step < self.config.max_steps:
            with self.clock.part("startup" if self.engine.name == "eager" else "compiling"):
                with compiling(self.engine):
                    seconds = self.engine.rehearse(self.step)
                self.seconds_per_step = self.world.sum([seconds if self.world.leads else 0.0])[0]
        # The same number for all processes, and for good: whoever asked at another step would wait for ever.
        self.steps_between_questions = max(1, min(10, round(SECONDS_BETWEEN_QUESTIONS / (self.seconds_per_step or 1))))
        self._announce()

    def _claim(self, model: GPT) -> None:
        """Writes the files that make a folder this run's; again, as long as there is no checkpoint, for a run that
        begins anew: it may have been killed in the midst of them, or be on another machine, with other last bits."""
        begins = not (self.config.goes_back or checkpoint.by_age(self.folder.checkpoints))
        if self.world.leads and begins:
            if not self.folder.exists():
                write_json(self.folder.path / "manifest.json", manifest(self.config, self.corpus, model))
            write_whole(self.folder.path / "config.yaml", self.config.to_yaml())
            audit.begin(self.folder, model)
            tokenizer = self.corpus.folder / TOKENIZER_FILE
            if tokenizer.exists():  # beside its model, so that the run folder alone can be sampled from
                write_whole(self.folder.path / TOKENIZER_FILE, tokenizer.read_bytes())
        self.world.wait()

    def _restore(self, model: GPT, path: Path | None) -> None:
        """Goes to the checkpoint that the first process has chosen, and forgets what was recorded after it."""
        chosen = int(self.world.sum([float(checkpoint.step_of(path)) if path else 0.0])[0])
        if model.set_frozen(frozen_matrices(self.config, max(chosen - 1, 0))):
            self.engine.rebuild()
        if chosen:
            path = self.folder.checkpoints / f"step-{chosen}"
            state = checkpoint.load(path, model, self.engine.moments())
            self.step, self.best, self.last_val, self.due = chosen, state["best"], state["last_val"], state["due"]
            self._since_log = [(loss, norm) for loss, norm in state["since_log"]]
            self.clock.restore(state["clock"], state["step_times"])
            self.engine.restore(state["engine"])
            self.say(f"resumed from {path}")
        if self.heart:
            self.heart.at(self.step)
            audit.rewind(self.folder, self.step)
            done = self.step - 1 if self.due else self.step
            for lines in (self.folder.metrics, self.folder.evals):
                cut_lines(lines, done)
            checkpoint.forget_best(self.folder.checkpoints, done)
            content = self.folder.manifest()
            content["sessions"].append(session(self.engine, self.command, self.step))
            write_whole(self.folder.path / "config.yaml", self.config.to_yaml())
            write_json(self.folder.path / "manifest.json", content)
            self.trackers.start(self.config, self.folder.path, self.id, done)

    def _announce(self) -> None:
        if not self.world.leads:
            return
        config, left = self.config, self.config.max_steps - self.step
        parameters = self.folder.manifest()["parameters"]
        processes = f", {self.world.size} processes" if self.world.size > 1 else ""
        facts = {
            "variant": f"{config.model_type} ({config.variant}), recipe {config.recipe}, seed {config.seed}",
            "parameters": f"{parameters['total']:,}: {parameters['trainable']:,} trainable, "
            f"{parameters['frozen']:,} frozen",
            "each step": f"{config.tokens_per_step:,} tokens ({config.batch_size} × {config.seq_len})",
            "data": f"{self.corpus.folder}, {len(self.train_tokens):,} tokens, "
            f"sha256 {self.corpus.hashes['train'][:12]}",
            "device": f"{device_name(self.world.device)}, {self.engine.name}, "
            f"{str(self.engine.precision).removeprefix('torch.')}{processes}",
            "validation": f"every {config.val_interval:,} steps on the same {self._scored_on_the_way():,} tokens",
            "run folder": str(self.folder.path),
            "steps": f"{left:,} to go"
            + (f" after {self.step:,}" if self.step else "")
            + f", about {formatted(left * self.seconds_per_step)} of training by a trial step; then the score on all "
            f"{self._all_final_tokens()}",
        }
        self.observer.announce(facts)
        for name, value in facts.items():
            self.folder.log(f"{name}: {value}")

    def _all_final_tokens(self) -> str:
        return f"{len(self.final_tokens) - 1:,} {SPLITS_IN_WORDS[self.config.final_split]} tokens"

    def _scored_on_the_way(self) -> int:
        return min(self.config.val_tokens or len(self.val_tokens), len(self.val_tokens) - 1)

    def at(self, interval: int | None) -> bool:
        assert interval is not None  # the config is resolved
        return self.step % interval == 0 or self.step == self.config.max_steps

    def train(self) -> None:
        self._freeze_or_thaw()
        with self.clock.part("training"):
            self.timer.begin()
            self.engine.step(self.step)
            self.timer.end()
        self.step += 1
        self.due = True
        if self.heart:
            self.heart.at(self.step)

    def _freeze_or_thaw(self) -> None:
        """Changes what trains, where the variant says so before the next step."""
        if self.step not in self.changes:
            return
        model = self.engine.model
        changed = model.set_frozen(frozen_matrices(self.config, self.step))
        self.collect()
        with self.clock.part("compiling"), compiling(self.engine):
            self.engine.rebuild()
            self.engine.rehearse(self.step)
        self.timer.pause()
        if self.world.leads:
            audit.change(self.folder, model, self.step, changed)
        frozen = sum(not model.get_parameter(name).requires_grad for name in changed)
        for count, what in ((frozen, "frozen"), (len(changed) - frozen, "thawed")):
            if count:
                self.say(f"{count} matrices {what} after step {self.step}")

    def collect(self) -> None:
        """Fetches the losses that are still on the device, and stops the run where one is not finite."""
        with self.clock.part("training"):
            results = self.engine.results()
            losses = self.world.sum([loss for loss, _ in results])
            new = [(loss / self.world.size, norm) for loss, (_, norm) in zip(losses, results, strict=True)]
            self.clock.step_times += self.timer.collect()
        scaled = self.engine.precision == torch.float16  # whose scaler meets infinite gradients and skips those steps
        for step, (loss, norm) in enumerate(new, start=self.step - len(new) + 1):
            if not math.isfinite(loss) or not (scaled or math.isfinite(norm)):
                what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
                raise DivergedError(self._diverged(what, step))
            # A step that the scaler has skipped had no norm: the one before it stands for it.
            before = self._since_log[-1][1] if self._since_log else 0.0
            self._since_log.append((loss, norm if math.isfinite(norm) else before))

    def log(self) -> None:
        self.collect()
        recent = self.clock.step_times[-len(self._since_log) :]
        step_time = sum(recent) / max(len(recent), 1)
        self.seconds_per_step = step_time
        record = {
            "step": self.step,
            "loss": sum(loss for loss, _ in self._since_log) / len(self._since_log),
            "grad_norm": self._since_log[-1][1],
            "lr": learning_rate(self.config, self.step - 1),
            "tokens": self.step * self.config.tokens_per_step,
            "step_time": step_time,
            "tokens_per_second": self.config.tokens_per_step / max(step_time, 1e-12),
            "elapsed": self.clock.total,
        }
        self._since_log = []
        if self.world.leads:
            append_line(self.folder.metrics, record)
            self.trackers.metrics(record)
            self._report(float(record["loss"]))
        self.background.check()

    def _report(self, loss: float) -> None:
        config, seconds = self.config, self.seconds_per_step
        speed = config.tokens_per_step / max(seconds, 1e-12)
        left = (config.max_steps - self.step) * seconds
        self.observer.progress(Progress(self.step, config.max_steps, loss, self.last_val, self.best, speed, left))

    def validate(self) -> None:
        """Scores the fixed validation tokens, and keeps the weights if they are the best so far."""
        self.collect()
        loss = self._score(self.config.val_tokens, final=False)
        self.last_val = loss
        if self.best is None or loss < self.best:
            self.best = loss
            if self.world.leads:
                self._save_best(loss)
        self.timer.pause()

    def _save_best(self, loss: float) -> None:
        folder, about = self.folder.checkpoints, {"run_id": self.id, "step": self.step, "val_loss": loss}
        with self.clock.part("saving"):
            self.background.write(
                {"model": checkpoint.weights(self.engine.model)},
                lambda tensors: checkpoint.save_best(folder, tensors["model"], about),
            )

    def save(self) -> None:
        self.collect()
        with self.clock.part("saving"):
            if self.world.leads:
                self._save_checkpoint()
            self.world.wait()
        self.timer.pause()

    def _save_checkpoint(self) -> None:
        folder, step = self.folder.checkpoints, self.step
        state = {
            "run_id": self.id,
            "best": self.best,
            "last_val": self.last_val,
            "due": self.due,
            "since_log": list(self._since_log),
            "engine": self.engine.state(),
            "clock": self.clock.state(),
        }
        tensors = {
            "model": checkpoint.weights(self.engine.model),
            "optimizer": self.engine.moments(),
            "clock": {"step_times": torch.tensor(self.clock.step_times)},
        }

        def write(snapshot: dict[str, dict[str, Tensor]]) -> None:
            path = checkpoint.save(folder, step, snapshot, state)
            self.folder.log(f"saved {path.name}")

        self.background.write(tensors, write)

    def saved(self) -> None:
        """Waits until what was handed over for saving is on the disk."""
        with self.clock.part("saving"):
            self.background.wait()
            self.world.wait()

    def agreed(self) -> bool:
        """Whether to stop here. Several processes must stop after the same step, so they ask each other at times."""
        if self.world.size == 1:
            return self.stop_asked()
        return self.step % self.steps_between_questions == 0 and self.world.sum([float(self.stop_asked())])[0] > 0

    def _may_break_off(self) -> bool:
        """Whether to stop in the middle of a score; several processes, which could not agree on it, end it first."""
        return self.world.size == 1 and self.stop_asked()

    def interrupted(self, number: int) -> InterruptedRunError:
        self.saved()
        path, size = self.folder.path, self.world.size
        command = "oelm train" if size == 1 else f"torchrun --nproc_per_node={size} -m oelm train"
        return InterruptedRunError(
            f"stopped by {signal.Signals(number).name} after step {self.step}; everything is saved. "
            f"To go on: {command} --config {shlex.quote(f'{path}/config.yaml')} --out_dir {shlex.quote(str(path))}",
            number,
        )

    def finish(self) -> None:
        """The score on the whole validation set, a sample, the audit, the times."""
        self.saved()
        self.say(f"scoring all {self._all_final_tokens()}")
        loss = self._score(None, final=True)
        if not self.world.leads:
            return
        assert self.heart is not None
        with self.clock.part("saving"):
            self._write_sample()
            audit.end(self.folder, self.engine.model, self.step)
        stats = {
            "model_type": self.config.model_type,
            "init_method": str(self.config.variant),
            "final_perplexity": perplexity(loss),
            "best_perplexity": None if self.best is None else perplexity(self.best),
            **self.clock.stats(),
            "peak_memory_bytes": self.world.peak_memory(),
        }
        write_json(self.folder.path / "timing_stats.json", stats)
        self.heart.end("finished")
        split = self.config.final_split
        self.say(
            f"finished: {split} loss {loss:.4f}, PPL {shown(perplexity(loss), 3)} on all {self._all_final_tokens()}"
        )

    def fail(self, state: str, message: str, diverged: bool = False) -> None:
        if self.heart is not None:
            with suppress(OSError):  # where the status cannot be written, its heartbeat ends: "dead"
                self.heart.end(state, message, diverged=diverged)
                self.folder.log(f"{state}: {message}")

    def close(self) -> None:
        """Ends what is being written, the trackers and the display."""
        self.background.close()
        try:
            self.background.wait()
        except Exception as error:  # whatever ended the run is the greater news
            self.observer.note(f"what was being saved could not be: {error}")
        self.trackers.close()
        self.observer.close()
        # What holds on to the processes' network must not be left for the interpreter's last moments.
        vars(self).pop("engine", None)

    def say(self, line: str) -> None:
        if self.world.leads:
            self.folder.log(line)
            self.observer.note(line)

    def _score(self, limit: int | None, final: bool) -> float:
        """The loss on held-out tokens, which is recorded."""
        with self.clock.part("validation"):
            held_out = self.final_tokens if final else self.val_tokens
            loss, tokens = evaluate(self.engine, held_out, limit, self._may_break_off)
            self.clock.validations += 1
            if not math.isfinite(loss):
                raise DivergedError(self._diverged(f"the validation loss is {loss}", self.step))
            self._record_score(loss, tokens, final)
        return loss

    def _record_score(self, loss: float, tokens: int, final: bool) -> None:
        if self.world.leads:
            on_the_way = [value for value in (self.best, None if final else loss) if value is not None]
            record: dict[str, Any] = {
                "step": self.step,
                "split": self.config.final_split if final else "val",
                "final": final,
                "loss": loss,
                "ppl": perplexity(loss),
                "best_loss": min(on_the_way, default=loss),  # of those on the way: the last line tells it
                "tokens_scored": tokens,
                "tokens_seen": self.step * self.config.tokens_per_step,
                "elapsed": self.clock.total,
                **diagnose(self.engine.model, self.births, self.val_tokens),
                **({"heads": head_scores(self.engine.model, self.val_tokens)} if final else {}),
            }
            append_line(self.folder.evals, record)
            self.trackers.score(record)

    def _write_sample(self) -> None:
        """Two hundred tokens from the finished model. A machine without the tokenizer goes without, and says so."""
        try:
            tokenizer = open_tokenizer(self.corpus.meta.tokenizer, self.corpus.folder)
        except (ImportError, UserError) as error:
            self.say(f"no sample written: {error}")
            return
        end = tokenizer.end_of_text
        tokens = generate(self.engine.model, [end], 200, 0.8, 50, self.config.seed, end, tokenizer.vocab_size)
        (self.folder.path / "samples").mkdir(exist_ok=True)
        write_whole(self.folder.path / "samples" / f"step-{self.step}.txt", tokenizer.decode(tokens[1:]) + "\n")

    def _diverged(self, what: str, step: int) -> str:
        rate = learning_rate(self.config, step - 1)
        with suppress(OSError):  # a save that failed has not become the last
            self.background.wait()
        kept = checkpoint.last(self.folder.checkpoints)
        return (
            f"{what} at step {step} (learning rate {rate:.3g}): training has diverged. "
            f"Try a lower --max_lr{', or --grad_clip 1' * (not self.config.grad_clip)} or a longer --warmup_steps. "
            f"Last good checkpoint: {kept if kept else 'none was saved yet'}"
        )
