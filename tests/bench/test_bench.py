"""The benchmark: who is compared computes the same, in turns, and the result says what was measured on what."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._autograd import DeviceType

from oelm.bench.bench import SAME_STEP, bench, cells, floor_ms, ratio
from oelm.bench.contenders import Contender, Ours
from oelm.bench.measure import interleaved, pairs, ran_on_gpu
from oelm.bench.options import Bench
from oelm.errors import UserError

# A stand-in for a checkout of nanoGPT: the same interface and the same names, around a model of PyTorch's own parts.
CHECKOUT = """
from dataclasses import dataclass
import torch
from torch import nn
import torch.nn.functional as F

@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        d, linear = config.n_embd, nn.Linear
        block = lambda: nn.ModuleDict(dict(
            ln_1=nn.LayerNorm(d),
            attn=nn.ModuleDict(dict(c_attn=linear(d, 3 * d), c_proj=linear(d, d))),
            ln_2=nn.LayerNorm(d),
            mlp=nn.ModuleDict(dict(c_fc=linear(d, 4 * d), c_proj=linear(4 * d, d))),
        ))
        self.heads = config.n_head
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            wpe=nn.Embedding(config.block_size, config.n_embd),
            h=nn.ModuleList(block() for _ in range(config.n_layer)),
            ln_f=nn.LayerNorm(config.n_embd),
        ))

    def forward(self, tokens, targets):
        t = self.transformer
        x = t.wte(tokens) + t.wpe.weight[: tokens.shape[1]]
        for b in t.h:
            sides = b.attn.c_attn(b.ln_1(x)).chunk(3, -1)
            q, k, v = (s.unflatten(-1, (self.heads, -1)).transpose(1, 2) for s in sides)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            x = x + b.attn.c_proj(y)
            x = x + b.mlp.c_proj(F.gelu(b.mlp.c_fc(b.ln_2(x)) * FACTOR))
        logits = t.ln_f(x) @ t.wte.weight.T
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self, decay, rate, betas, device):
        return torch.optim.AdamW(self.parameters(), lr=rate, betas=betas, weight_decay=decay)
"""


def checkout(folder: Path, factor: float = 1.0) -> str:
    (folder / "model.py").write_text(f"FACTOR = {factor}\n{CHECKOUT}")
    return str(folder)


def options(storybook: Path, tmp_path: Path, **more: object) -> Bench:
    fields = {"preset": "nano", "positions": "learned", "data_path": str(storybook), "device": "cpu", "batch_size": 2}
    fields |= {"rounds": 2, "seconds": 0.05, "out": str(tmp_path / "results" / "bench.json")}
    return Bench(**{**fields, **more})  # type: ignore[arg-type]


def test_all_compute_the_same_and_the_result_is_kept(storybook: Path, tmp_path: Path) -> None:
    asked = options(storybook, tmp_path, nanogpt=checkout(tmp_path), huggingface=True)
    result = bench(asked, say=lambda line: None)
    assert result["same_loss"].keys() == {"oelm", "nanoGPT", "transformers"}
    kept = json.loads(asked.path.read_text())
    assert kept["machine"]["versions"]["torch"] == torch.__version__
    names = [entry["name"] for entry in kept["contenders"]]
    assert names == ["oelm baseline, eager", "oelm oelm_v2, eager", "nanoGPT, eager", "Hugging Face Trainer, eager"]
    for entry in kept["contenders"]:
        assert len(entry["ms_rounds"]) == 2
        assert 0 < floor_ms(kept, entry) < entry["ms"]
        assert 0 < entry["mfu"] < 1
    baseline, frozen, *_ = kept["contenders"]
    assert floor_ms(kept, frozen) < floor_ms(kept, baseline)
    for what in ("loss", "norm"):
        assert baseline["first_step"][what]["measured"] == pytest.approx(
            baseline["first_step"][what]["model"], rel=1e-4
        )
    assert [row[0] for row in cells(result)] == [*names, "floor"]


def test_a_peer_that_computes_something_else_is_not_measured(storybook: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="do not compute the same loss"):
        bench(options(storybook, tmp_path, nanogpt=checkout(tmp_path, factor=1.5)), say=lambda line: None)


def test_steps_that_do_not_compute_what_they_stand_for_are_not_measured(
    storybook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even at the tolerance of bf16, where the step lacks its attention: at birth the loss hardly tells."""
    begin = Ours.__init__

    def without_attention(contender: Ours, *arguments: Any) -> None:
        begin(contender, *arguments)
        for name, weight in contender.engine.model.named_parameters():
            weight.requires_grad_(False).mul_(not name.endswith("attention.o.weight")).requires_grad_()

    monkeypatch.setattr(Ours, "__init__", without_attention)
    monkeypatch.setitem(SAME_STEP, torch.float32, SAME_STEP[torch.bfloat16])
    with pytest.raises(UserError, match=r"oelm baseline, eager does not compute its model's step \(norm"):
        bench(options(storybook, tmp_path), say=lambda line: None)


def test_peers_can_be_measured_by_themselves(storybook: Path, tmp_path: Path) -> None:
    result = bench(options(storybook, tmp_path, nanogpt=checkout(tmp_path), variants=()), say=lambda line: None)
    assert [row[0] for row in cells(result)] == ["nanoGPT, eager", "floor"]


def test_a_slow_moment_and_a_good_place_in_the_turns_do_not_pass_for_a_saving() -> None:
    """Rounds forwards and backwards are taken together: here the second runs early in every other one."""
    first, second = {"ms_rounds": [10.0, 12, 20, 22]}, {"ms_rounds": [11.0, 9, 21, 19, 5]}
    assert pairs(first["ms_rounds"]) == [11, 21]
    assert pairs(second["ms_rounds"]) == [10, 20]
    assert ratio({"ms_rounds": second["ms_rounds"][:4]}, first) == pytest.approx((10 / 11 + 20 / 21) / 2)


def test_only_what_ran_on_the_gpu_is_a_launch() -> None:
    events = [SimpleNamespace(device_type=kind) for kind in (DeviceType.CPU, DeviceType.CUDA, DeviceType.CUDA)]
    assert ran_on_gpu(events) == 2


def test_a_path_that_is_no_checkout_is_named(storybook: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--nanogpt .*: there is no model\.py"):
        bench(options(storybook, tmp_path, nanogpt=str(tmp_path)), say=lambda line: None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"engines": ("grph",)}, "did you mean graph"), ({"variants": ()}, "at least one"), ({"rounds": 3}, "--rounds")],
)
def test_wrong_options_are_refused(storybook: Path, tmp_path: Path, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        options(storybook, tmp_path, **wrong)


def test_contenders_take_turns_forwards_and_backwards() -> None:
    calls: list[str] = []

    class Named(Contender):
        def __init__(self, name: str) -> None:
            self.name, self._work = name, nn.Linear(64, 64)

        def run(self, steps: int) -> None:
            calls.append(self.name)
            for _ in range(steps):
                self._work(torch.ones(64, 64))

    times = interleaved([Named("a"), Named("b")], torch.device("cpu"), 4, 0.001, on_round=lambda: calls.append("|"))
    rounds = "".join(calls).split("|")[1:4]
    assert rounds == ["bbaa", "aabb", "bbaa"]
    assert [len(each.rounds) for each in times] == [4, 4]
