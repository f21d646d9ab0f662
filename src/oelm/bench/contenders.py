"""Those whose steps are measured: anything that can run a number of training steps when told to.

Peers run as their own scripts run them. nanoGPT is imported from a user's own checkout; none of its code is here.
"""

from __future__ import annotations

import importlib.util
import math
import tempfile
import threading
from abc import ABC, abstractmethod
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.config import RunConfig
from oelm.data.batches import Batches
from oelm.errors import UserError
from oelm.model.gpt import GPT
from oelm.training.step import open_engine, precision_of
from oelm.training.world import World

Tokens = npt.NDArray[Any]
NANOGPT_VOCABULARY = 50304  # what its train.py uses when it starts from scratch


class Contender(ABC):
    name: str

    @abstractmethod
    def run(self, steps: int) -> None:
        """Begins so many training steps; on a GPU they need not have ended when it returns."""

    def close(self) -> None:  # noqa: B027
        """Lets go of what it holds."""


class Ours(Contender):
    def __init__(self, config: RunConfig, device: torch.device, tokens: Tokens) -> None:
        batches = Batches(tokens, config.seq_len, config.batch_size, config.seed)
        model = GPT(config, config.seed).to(device)
        self.engine = open_engine(model, config, World(0, 1, device), batches)
        self.name = f"oelm {config.model_type}, {self.engine.name}"
        self.engine.rehearse(0)
        self.first_step = (math.nan, math.nan)  # its loss and its gradient's norm, as soon as it was run
        self._step = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step(self._step)
            self._step += 1
        results = self.engine.results()
        if self._step == steps:
            self.first_step = results[0]


class NanoGpt(Contender):
    """The loop of nanoGPT's train.py, around its model."""

    def __init__(self, checkout: Path, config: RunConfig, device: torch.device, tokens: Tokens, compiled: bool) -> None:
        self.name = f"nanoGPT, {'compiled' if compiled else 'eager'}"
        self._config, self._device, self._tokens = config, device, tokens
        vocabulary = NANOGPT_VOCABULARY if config.vocab_size == 50257 else config.vocab_size
        self._model = nanogpt_model(checkout, config, vocabulary).to(device)
        kind = device.type
        self._optimizer = self._model.configure_optimizers(  # type: ignore[operator]
            config.weight_decay, config.max_lr, (config.beta1, config.beta2), kind
        )
        self._forward: Any = torch.compile(self._model) if compiled else self._model
        precision = precision_of(config, device)
        self._autocast = torch.autocast(kind, precision) if precision != torch.float32 else nullcontext()
        self._batch = self._get_batch()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            with self._autocast:
                _, loss = self._forward(*self._batch)
            self._batch = self._get_batch()  # while the device works
            loss.backward()
            nn.utils.clip_grad_norm_(self._model.parameters(), self._config.grad_clip)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def _get_batch(self) -> tuple[Tensor, Tensor]:
        length = self._config.seq_len
        starts = torch.randint(len(self._tokens) - length, (self._config.batch_size,)).tolist()
        windows = [torch.from_numpy(self._tokens[i : i + length + 1].astype(np.int64)) for i in starts]
        inputs, targets = torch.stack([w[:-1] for w in windows]), torch.stack([w[1:] for w in windows])
        if self._device.type == "cpu":
            return inputs, targets
        return (
            inputs.pin_memory().to(self._device, non_blocking=True),
            targets.pin_memory().to(self._device, non_blocking=True),
        )


class HuggingFace(Contender):
    """transformers.Trainer, which wants to run by itself: in a thread that is let on a number of steps at a time."""

    def __init__(self, config: RunConfig, device: torch.device, tokens: Tokens, compiled: bool) -> None:
        import transformers

        self.name = f"Hugging Face Trainer, {'compiled' if compiled else 'eager'}"
        self._allowed, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._closing = False
        self._error: BaseException | None = None
        self._folder = tempfile.TemporaryDirectory()
        arguments = transformers.TrainingArguments(
            output_dir=self._folder.name,
            max_steps=10**9,
            per_device_train_batch_size=config.batch_size,
            learning_rate=config.max_lr,
            weight_decay=config.weight_decay,
            adam_beta1=config.beta1,
            adam_beta2=config.beta2,
            max_grad_norm=config.grad_clip,
            optim="adamw_torch_fused",
            bf16=precision_of(config, device) == torch.bfloat16,
            torch_compile=compiled,
            use_cpu=device.type == "cpu",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        if device.type == "cuda":
            if arguments.device != device:
                raise UserError(f"--huggingface runs on {arguments.device}, not on {device}; set CUDA_VISIBLE_DEVICES")
            arguments._n_gpu = 1  # or it would cut batches, so many times as large, over all the GPUs that it sees
        self._trainer = transformers.Trainer(
            transformers_model(config), arguments, train_dataset=_Windows(tokens, config.seq_len)
        )
        self._trainer.add_callback(self._gate(transformers.TrainerCallback))
        self._trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._allowed.release()
        for _ in range(steps):
            self._done.acquire()
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        self._closing = True
        self._allowed.release()
        self._thread.join()
        self._folder.cleanup()

    def _train(self) -> None:
        try:
            self._trainer.train()
        except BaseException as error:
            self._error = error
            self._done.release()

    def _gate(self, base: Any) -> Any:
        contender = self

        class Gate(base):  # type: ignore[misc]
            def on_step_begin(self, arguments: Any, state: Any, control: Any, **rest: Any) -> None:
                contender._allowed.acquire()

            def on_step_end(self, arguments: Any, state: Any, control: Any, **rest: Any) -> None:
                control.should_training_stop = contender._closing
                contender._done.release()

        return Gate()


class _Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, tokens: Tokens, seq_len: int) -> None:
        self._tokens, self._seq_len = tokens, seq_len

    def __len__(self) -> int:
        return len(self._tokens) // self._seq_len

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = index * self._seq_len
        window = torch.from_numpy(self._tokens[start : start + self._seq_len].astype(np.int64))
        return {"input_ids": window, "labels": window}


def nanogpt_model(checkout: Path, config: RunConfig, vocab_size: int) -> nn.Module:
    """The GPT of a nanoGPT checkout in our shape."""
    path = checkout / "model.py"
    if not path.exists():
        raise UserError(f"--nanogpt {checkout}: there is no model.py; give the path of a nanoGPT checkout")
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shape = module.GPTConfig(
        block_size=config.seq_len,
        vocab_size=vocab_size,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        n_embd=config.d_model,
        dropout=config.dropout,
        bias=True,
    )
    model: nn.Module = module.GPT(shape)
    return model


def transformers_model(config: RunConfig) -> nn.Module:
    """GPT2LMHeadModel in our shape."""
    try:
        import accelerate  # noqa: F401  (the Trainer needs it)
        import transformers
    except ImportError as missing:
        raise UserError(f"--huggingface needs {missing.name}: pip install 'oelm[bench]'") from None
    transformers.logging.set_verbosity_error()
    shape = transformers.GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.seq_len,
        n_embd=config.d_model,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        n_inner=config.d_ff,
        activation_function="gelu",
        resid_pdrop=config.dropout,
        embd_pdrop=config.dropout,
        attn_pdrop=config.dropout,
        use_cache=False,
    )
    model: nn.Module = transformers.GPT2LMHeadModel(shape)
    return model


def first_step(config: RunConfig, device: torch.device, tokens: Tokens) -> tuple[float, float]:
    """The loss of a run's first step and its gradient's norm, by the logical model in fp32, a sequence at a time."""
    model = GPT(config, config.seed).to(device)
    batch = Batches(tokens, config.seq_len, config.batch_size, config.seed).batch(0)
    inputs, targets = (torch.from_numpy(part).contiguous().to(device) for part in (batch.inputs, batch.targets))
    total = 0.0
    for sequence, following in zip(inputs, targets, strict=True):
        loss = model(sequence[None], following[None]) / len(inputs)
        loss.backward()
        total += loss.item()
    return total, nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]).item()


@torch.no_grad()
def losses_on_one_batch(
    config: RunConfig, device: torch.device, tokens: Tokens, checkout: Path | None, huggingface: bool
) -> dict[str, float]:
    """The loss of the same weights on the same batch, in fp32, by each model: they are one and the same network."""
    model = GPT(config, config.seed).to(device)
    batch = Batches(tokens, config.seq_len, config.batch_size, config.seed).batch(0)
    inputs, targets = (torch.from_numpy(part).contiguous().to(device) for part in (batch.inputs, batch.targets))
    losses = {"oelm": model(inputs, targets).item()}
    if huggingface:
        hf = transformers_model(config).to(device).eval()
        _load_gpt2(hf, model, transposed=True)
        logits: Tensor = hf(inputs).logits
        losses["transformers"] = F.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    if checkout is not None:
        nano = nanogpt_model(checkout, config, config.vocab_size).to(device).eval()
        _load_gpt2(nano, model, transposed=False)
        losses["nanoGPT"] = nano(inputs, targets)[1].item()
    if not all(math.isclose(loss, losses["oelm"], rel_tol=1e-4) for loss in losses.values()):
        raise UserError(f"the models do not compute the same loss, so their times mean nothing: {losses}")
    return losses


def _load_gpt2(peer: nn.Module, model: GPT, transposed: bool) -> None:
    """Copies our weights into a model with GPT-2's names; its attention biases, which we have not, become zero."""
    ours = dict(model.named_parameters())
    for name, theirs in peer.named_parameters():
        place = name.removeprefix("transformer.")
        weight = _our_tensor(place, ours)
        if weight is None:
            theirs.zero_()
        elif transposed and ".c_" in place and weight.ndim == 2:
            theirs.copy_(weight.T)
        else:
            theirs.copy_(weight)


def _our_tensor(place: str, ours: dict[str, nn.Parameter]) -> Tensor | None:
    whole = {"wte.weight": "tokens.weight", "lm_head.weight": "tokens.weight", "wpe.weight": "positions.weight"}
    if place in whole:
        return ours[whole[place]]
    if place.startswith("ln_f"):
        return ours[place.replace("ln_f", "norm")]
    _, layer, part, rest = place.split(".", 3)
    if part in ("ln_1", "ln_2"):
        return ours[f"blocks.{layer}.norm{part[-1]}.{rest}"]
    if part == "mlp":
        return ours[f"blocks.{layer}.mlp.{rest.replace('c_fc', 'up').replace('c_proj', 'down')}"]
    if rest == "c_attn.weight":
        return torch.cat([ours[f"blocks.{layer}.attention.{side}.weight"] for side in "qkv"])
    return ours[f"blocks.{layer}.attention.o.weight"] if rest == "c_proj.weight" else None
