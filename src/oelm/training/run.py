"""A run in progress: what it is made of, where it stands, and how to do each part of the loop."""

from __future__ import annotations

import math
import shlex
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oelm.config import RunConfig
from oelm.data.batches import Batches, Corpus, ahead
from oelm.data.tokenizer import TOKENIZER_FILE, open_tokenizer
from oelm.errors import InterruptedRunError, RunFailedError, UserError
from oelm.model.generate import generate
from oelm.model.gpt import GPT
from oelm.runfolder import Heart, RunFolder, append_line, cut_lines, write_json, write_whole
from oelm.training import audit, checkpoint
from oelm.training.clock import Clock, StepTimer, formatted
from oelm.training.evaluate import diagnose, evaluate
from oelm.training.manifest import manifest, session
from oelm.training.observe import Observer, Progress, perplexity
from oelm.training.schedule import learning_rate
from oelm.training.step import MicroBatches, Stepper
from oelm.training.world import World


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

    def __post_init__(self) -> None:
        self.train_tokens, self.val_tokens = self.corpus.split("train"), self.corpus.split("val")
        config = self.config
        self.batches = Batches(self.train_tokens, config.seq_len, config.batch_size, config.seed)
        self.timer = StepTimer(self.world.device)
        self.heart: Heart | None = None
        self._on_device: list[tuple[Tensor, Tensor]] = []  # losses and gradient norms not yet fetched
        self._since_log: list[tuple[float, float]] = []  # fetched, but not yet in a line of metrics

    def finished_before(self) -> bool:
        if not self.folder.exists() or self.folder.status()["state"] != "finished":
            return False
        self.say(f"{self.folder.path} is finished already: nothing to do")
        return True

    def start(self) -> None:
        """Builds the model, goes to where the run stood, and says what will run."""
        with self.clock.part("startup"):
            if self.world.leads:
                self.heart = Heart(self.folder, self.config.max_steps)
            model = GPT(self.config, self.config.seed).to(self.world.device)
            self.births = {name: w.detach().cpu().clone() for name, w in model.query_key_weights().items()}
            self.stepper = Stepper(model, self.config, self.world)
            self._claim(model)
            self._restore(model)
            if self.heart:
                self.heart.at(self.step)
        self._rehearse()
        self._announce(model)

    def _claim(self, model: GPT) -> None:
        """Writes the files of a new run, or checks that the folder holds this very run."""
        if self.world.leads:
            mine = manifest(self.config, self.corpus, model)
            if self.folder.exists():
                mine = self.folder.manifest()
            else:
                audit.begin(self.folder, model)
                tokenizer = self.corpus.folder / TOKENIZER_FILE
                if tokenizer.exists():  # beside its model, so that the run folder alone can be sampled from
                    write_whole(self.folder.path / TOKENIZER_FILE, tokenizer.read_bytes())
            write_whole(self.folder.path / "config.yaml", self.config.to_yaml())
            write_json(self.folder.path / "manifest.json", mine)
        self.world.wait()

    def _restore(self, model: GPT) -> None:
        frozen = audit.hashes_at_freeze(self.folder)
        path: Path | None = None
        if self.world.leads:
            path = self._choose_checkpoint(model, frozen)
        chosen = int(self.world.sum([float(path.name.removeprefix("step-")) if path else 0.0])[0])
        if chosen:
            path = self.folder.checkpoints / f"step-{chosen}"
            state = checkpoint.load(path, model, self.stepper.optimizer)
            self.step, self.best, self.last_val = chosen, state["best"], state["last_val"]
            self._since_log = [(loss, norm) for loss, norm in state["since_log"]]
            self.clock.restore(state["clock"])
            self.stepper.scaler.load_state_dict(state["scaler"])
            self.say(f"resumed from {path}")
        if self.world.leads:
            for path in (self.folder.metrics, self.folder.evals):
                cut_lines(path, self.step)
            content = self.folder.manifest()
            content["sessions"].append(session(self.stepper, self.command, self.step))
            write_json(self.folder.path / "manifest.json", content)

    def _choose_checkpoint(self, model: GPT, frozen: dict[str, str]) -> Path | None:
        if self.config.resume not in ("auto", "never"):
            path = Path(self.config.resume).resolve()
            if path.parent != self.folder.checkpoints.resolve():
                raise UserError(f"--resume {self.config.resume} is not a checkpoint of {self.folder.path}")
            try:
                checkpoint.check(path, model, self.stepper.optimizer, frozen)
            except checkpoint.DamagedError as damage:
                raise UserError(f"--resume {self.config.resume} cannot be used: {damage}") from None
            checkpoint.go_back(path)
        return checkpoint.newest(self.folder.checkpoints, self.say, model, self.stepper.optimizer, frozen)

    def _rehearse(self) -> None:
        """Compiles, and times a step that changes nothing, to say how long it will take."""
        if self.step == self.config.max_steps:
            return
        batches = self.batches.share(self.step, self.world.rank, self.world.size, self.config.accumulation)
        with self.clock.part("compiling" if self.stepper.engine == "compile" else "startup"):
            self.stepper.rehearse(batches, self.step)
            self.timer.begin()
            self.stepper.rehearse(batches, self.step)
            self.timer.end()
            self.seconds_per_step = self.timer.collect()[0]
            self.timer.pause()

    def _announce(self, model: GPT) -> None:
        config, total = self.config, sum(p.numel() for p in model.parameters())
        frozen = sum(p.numel() for p in model.frozen().values())
        left = config.max_steps - self.step
        facts = {
            "variant": f"{config.model_type} ({config.variant}), recipe {config.recipe}, seed {config.seed}",
            "parameters": f"{total:,}: {total - frozen:,} trainable, {frozen:,} frozen",
            "each step": f"{config.tokens_per_step:,} tokens ({config.batch_size} × {config.seq_len})",
            "data": f"{self.corpus.folder}, {len(self.train_tokens):,} tokens, "
            f"sha256 {self.corpus.hashes['train'][:12]}",
            "device": f"{session(self.stepper, [], 0)['device']}, {self.stepper.engine}, "
            f"{str(self.stepper.precision).removeprefix('torch.')}"
            + (f", {self.world.size} processes" if self.world.size > 1 else ""),
            "run folder": str(self.folder.path),
            "steps": f"{left:,} to go"
            + (f" after {self.step:,}" if self.step else "")
            + f", about {formatted(left * self.seconds_per_step)} of training by two trial steps",
        }
        if self.world.leads:
            self.observer.announce(facts)
            for name, value in facts.items():
                self.folder.log(f"{name}: {value}")

    def remaining_batches(self) -> Iterator[MicroBatches]:
        config, world = self.config, self.world
        return ahead(
            self.batches,
            self.step,
            config.max_steps,
            world.rank,
            world.size,
            config.accumulation,
            config.num_workers,
        )

    def at(self, interval: int) -> bool:
        return self.step % interval == 0 or self.step == self.config.max_steps

    def train(self, batches: MicroBatches) -> None:
        with self.clock.part("training"):
            self.timer.begin()
            rate = learning_rate(self.config, self.step)
            self._on_device.append(self.stepper.update(batches, self.step, rate))
            self.timer.end()
        self.step += 1

    def collect(self) -> None:
        """Fetches the losses that are still on the device, and stops the run where one is not finite."""
        if not self._on_device:
            return
        with self.clock.part("training"):
            pairs = torch.stack([torch.stack(pair) for pair in self._on_device]).double().cpu()
            first = self.step - len(pairs)
            self._on_device = []
            losses = self.world.sum(pairs[:, 0].tolist())
            self._since_log += [
                (loss / self.world.size, norm) for loss, norm in zip(losses, pairs[:, 1].tolist(), strict=True)
            ]
            self.clock.step_times += self.timer.collect()
        scaled = self.stepper.scaler.is_enabled()  # fp16's scaler meets infinite gradients and skips those steps
        for i, (loss, norm) in enumerate(self._since_log[-len(pairs) :]):
            if not math.isfinite(loss) or not (scaled or math.isfinite(norm)):
                raise RunFailedError(self._not_finite(first + i + 1, loss, norm))

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
            assert self.heart is not None
            self.heart.at(self.step)
            self._report(float(record["loss"]))

    def _report(self, loss: float) -> None:
        config, seconds = self.config, self.seconds_per_step
        speed = config.tokens_per_step / max(seconds, 1e-12)
        left = (config.max_steps - self.step) * seconds
        self.observer.progress(Progress(self.step, config.max_steps, loss, self.last_val, self.best, speed, left))

    def validate(self) -> None:
        """Scores the fixed validation tokens, and keeps the weights if they are the best so far."""
        self.collect()
        with self.clock.part("validation"):
            loss, tokens = evaluate(self.stepper, self.val_tokens, self.config.val_tokens)
            self.clock.validations += 1
            self._record_score(loss, tokens, final=False)
        self.last_val = loss
        if self.best is None or loss < self.best:
            self.best = loss
            if self.world.leads:
                with self.clock.part("saving"):
                    checkpoint.save_best(self.folder.checkpoints, self.stepper.model, self.step, loss)
        self.timer.pause()

    def save(self) -> None:
        self.collect()
        with self.clock.part("saving"):
            if self.world.leads:
                state = {
                    "best": self.best,
                    "last_val": self.last_val,
                    "since_log": self._since_log,
                    "scaler": self.stepper.scaler.state_dict(),
                    "clock": self.clock.state(),
                }
                model, optimizer = self.stepper.model, self.stepper.optimizer
                path = checkpoint.save(self.folder.checkpoints, self.step, model, optimizer, state)
                self.folder.log(f"saved {path.name}")
            self.world.wait()
        self.timer.pause()

    def agreed(self, asked: bool) -> bool:
        """Whether to stop here. Several processes must stop after the same step, so they ask each other."""
        if self.world.size == 1:
            return asked
        return self.step % self.config.log_interval == 0 and self.world.sum([float(asked)])[0] > 0

    def interrupted(self, number: int) -> InterruptedRunError:
        path = self.folder.path
        if self.heart:
            self.heart.at(self.step)
        return InterruptedRunError(
            f"stopped by {signal.Signals(number).name} after step {self.step}; everything is saved. "
            f"To go on: oelm train --config {shlex.quote(f'{path}/config.yaml')} --out_dir {shlex.quote(str(path))}",
            number,
        )

    def finish(self) -> None:
        """The score on the whole validation set, a sample, the audit, the times."""
        with self.clock.part("validation"):
            loss, tokens = evaluate(self.stepper, self.val_tokens, None)
            self.clock.validations += 1
            self._record_score(loss, tokens, final=True)
        if not self.world.leads:
            return
        assert self.heart is not None
        self._write_sample()
        audit.end(self.folder, self.stepper.model, self.step)
        stats = {
            "model_type": self.config.model_type,
            "init_method": str(self.config.variant),
            "final_perplexity": perplexity(loss),
            "best_perplexity": None if self.best is None else perplexity(self.best),
            **self.clock.stats(),
        }
        write_json(self.folder.path / "timing_stats.json", stats)
        self.heart.end("finished")
        self.say(f"finished: val loss {loss:.4f}, PPL {perplexity(loss):.3f} on all {tokens:,} validation tokens")

    def fail(self, state: str, message: str) -> None:
        if self.heart is not None:
            with suppress(OSError):  # with a full disk the status cannot be written; its heartbeat then ends: "dead"
                self.heart.end(state, message)
                self.folder.log(f"{state}: {message}")

    def say(self, line: str) -> None:
        if self.world.leads:
            self.folder.log(line)
            self.observer.note(line)

    def _record_score(self, loss: float, tokens: int, final: bool) -> None:
        if self.world.leads:
            record: dict[str, Any] = {
                "step": self.step,
                "split": "val",
                "final": final,
                "loss": loss,
                "ppl": perplexity(loss),
                "tokens_scored": tokens,
                "tokens_seen": self.step * self.config.tokens_per_step,
                "elapsed": self.clock.total,
                **diagnose(self.stepper.model, self.births, self.val_tokens),
            }
            append_line(self.folder.evals, record)

    def _write_sample(self) -> None:
        """Two hundred tokens from the finished model. A machine without the tokenizer goes without, and says so."""
        try:
            tokenizer = open_tokenizer(self.corpus.meta["tokenizer"], self.corpus.folder)
        except (ImportError, UserError) as error:
            self.say(f"no sample written: {error}")
            return
        end = tokenizer.end_of_text
        tokens = generate(self.stepper.model, [end], 200, 0.8, 50, self.config.seed, end, tokenizer.vocab_size)
        (self.folder.path / "samples").mkdir(exist_ok=True)
        write_whole(self.folder.path / "samples" / f"step-{self.step}.txt", tokenizer.decode(tokens[1:]) + "\n")

    def _not_finite(self, step: int, loss: float, norm: float) -> str:
        rate = learning_rate(self.config, step - 1)
        what = f"the loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
        kept = checkpoint.last(self.folder.checkpoints)
        return (
            f"{what} at step {step} (learning rate {rate:.3g}): training has diverged. "
            f"Try a lower --max_lr, a longer --warmup_steps or a smaller --grad_clip. "
            f"Last good checkpoint: {kept if kept else 'none was saved yet'}"
        )
