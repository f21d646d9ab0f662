"""The kernels for GPUs compute what their plain PyTorch counterparts do, for shapes that fill no block as well."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oelm.fast import gelu, loss, norm, products
from oelm.fast.adamw import Flat, Unit, settings
from tests.conftest import needs
from tests.fast.reference import clipped_adamw

SHAPES = [(4096, 512), (77, 192), (1, 1)]
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def _gpu() -> None:
    needs("cuda")


def agree(on_gpu: Tensor, on_cpu: Tensor, tolerance: float) -> None:
    assert on_gpu.dtype == on_cpu.dtype
    torch.testing.assert_close(on_gpu.cpu().float(), on_cpu.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("rows", "depth", "vocab_size", "width"),
    [(640, 512, 50257, 50304), (5, 24, 61, 64), (300, 64, 384, 384), (3, 768, 2, 64)],
)
def test_the_output_layer(rows: int, depth: int, vocab_size: int, width: int) -> None:
    """Loss, gradients and score from the same numbers; the CPU computes with them in fp32."""
    hidden, weight = torch.randn(rows, depth).bfloat16(), (torch.randn(width, depth) * 4 / depth**0.5).bfloat16()
    targets, start = torch.randint(0, vocab_size, (rows,)), torch.randn(width, depth)
    here, there = start.clone(), start.cuda()
    expected = loss.head_loss(hidden.float(), weight.float(), targets, vocab_size, 0.5, here, add=True)
    h, w, t = (tensor.cuda() for tensor in (hidden, weight, targets))
    found = loss.head_loss(h, w, t, vocab_size, 0.5, there, add=True)
    agree(found[0], expected[0], 1e-5)
    agree(found[1].float() / weight.std().cuda(), expected[1] / weight.std(), ROUNDING[torch.bfloat16])
    agree(there - start.cuda(), here - start, ROUNDING[torch.bfloat16])
    agree(loss.head_score(h, w, t, vocab_size), expected[0], 1e-5)


def test_a_logit_that_is_no_number_makes_the_loss_none() -> None:
    hidden, weight = torch.randn(4, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    hidden[2, 3] = float("nan")
    arguments = (hidden.cuda(), weight.cuda(), torch.tensor([0, 1, 2, 3]).cuda(), 64)
    assert loss.head_score(*arguments).isnan()
    assert loss.head_loss(*arguments, 1.0, torch.zeros(64, 64).cuda(), add=False)[0].isnan()


def test_a_hopeless_token_has_a_loss_that_is_a_number() -> None:
    hidden, weight = torch.full((2, 64), 10.0).bfloat16(), torch.randn(64, 64).bfloat16()
    weight[0], weight[1] = 10.0, -10.0
    gradient = torch.zeros(64, 64).cuda()
    total, by_hidden = loss.head_loss(
        hidden.cuda(), weight.cuda(), torch.tensor([1, 1]).cuda(), 64, 1.0, gradient, add=False
    )
    assert 100 < total.item() < 200
    assert by_hidden.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("add", [False, True])
def test_weight_gradients_in_one_launch(precision: torch.dtype, add: bool) -> None:
    """Of several sizes and tiles, some of them slices of wider ones; and of a size that fills no tile."""
    from oelm.fast import grouped_kernels

    stacked, x, wide = (torch.randn(192, width).bfloat16() for width in (416, 128, 256))
    pairs = [
        ((stacked, slice(128, 256)), (x, slice(None)), (128, 128)),
        ((wide, slice(None)), (x, slice(None)), (128, 128)),
        ((x, slice(None)), (wide, slice(None)), (128, 128)),
        ((stacked, slice(384, 416)), (wide, slice(None)), (32, 128)),
        ((wide, slice(None)), (stacked, slice(384, 416)), (128, 32)),
        ((stacked, slice(384, 400)), (x, slice(64)), (16, 64)),
        ((stacked, slice(0, 24)), (x, slice(None)), None),
    ]
    there = {id(t): t.cuda() for t in (stacked, x, wide)}
    starts = [torch.randn(len(g[0, i]), len(y[0, j])).to(precision) for (g, i), (y, j), _ in pairs]
    jobs = [
        products.Job(there[id(g)][:, i], there[id(y)][:, j], start.cuda())
        for ((g, i), (y, j), _), start in zip(pairs, starts, strict=True)
    ]
    assert [grouped_kernels.tile_of(job) for job in jobs] == [tile for *_, tile in pairs]
    products.WeightGradients(torch.device("cuda"))(jobs, 0, add)
    for ((g, i), (y, j), _), start, job in zip(pairs, starts, jobs, strict=True):
        expected = g[:, i].float().T @ y[:, j].float() + (start.float() if add else 0)
        torch.testing.assert_close(job.out.cpu().float() / 192**0.5, expected / 192**0.5, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", SHAPES)
def test_gelu(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, gradient = (3 * torch.randn(shape)).to(dtype), torch.randn(shape).to(dtype)
    agree(gelu.gelu(x.cuda()), gelu.gelu(x), ROUNDING[dtype])
    there, here = gelu.gelu_backward(x.cuda(), gradient.cuda()), gelu.gelu_backward(x, gradient)
    agree(there[0], here[0], ROUNDING[dtype])
    agree(there[1] / shape[0] ** 0.5, here[1] / shape[0] ** 0.5, ROUNDING[dtype])


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shape", [*SHAPES[:2], (9, 3000)])
def test_add_norm(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    stream, said = torch.randn(shape), torch.randn(shape).to(dtype)
    weight, bias = torch.randn(shape[1]), torch.randn(shape[1])
    here = norm.add_norm(stream, said, weight, bias, 1e-5)
    there = norm.add_norm(*(t.cuda() for t in (stream, said, weight, bias)), 1e-5)
    for ours, theirs in zip(there, here, strict=True):
        agree(ours, theirs, ROUNDING[dtype])
    by_total, by_normed = torch.randn(shape), torch.randn(shape).to(dtype)
    total, _, mean, inverse = here
    arguments = (by_total, by_normed, total, mean, inverse, weight)
    here, there = norm.add_norm_backward(*arguments), norm.add_norm_backward(*(t.cuda() for t in arguments))
    for ours, theirs in zip(there[:2], here[:2], strict=True):
        agree(ours, theirs, ROUNDING[dtype])
    agree(there[2] / shape[0] ** 0.5, here[2] / shape[0] ** 0.5, 1e-4)


@pytest.mark.parametrize("precision", ROUNDING)
@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_adamw(precision: torch.dtype, clip: float) -> None:
    """Units of all sizes, in both precisions of the gradient; one more rests and is not touched."""
    from oelm.fast.adamw_kernels import FusedAdamW

    def flat(device: str, count: int) -> Flat:
        torch.manual_seed(0)
        tensors = [torch.randn(300, 64), torch.randn(37), torch.randn(5, 7), torch.randn(16)][:count]
        decays = (0.1, 0.0, 0.5, 0.5)
        units = [Unit.of(str(i), nn.Parameter(t.to(device)), decays[i], 8) for i, t in enumerate(tensors)]
        return Flat(units, precision)

    here, there, betas = flat("cpu", 3), flat("cuda", 4), (0.9, 0.95)
    there.refresh()
    resting = there.by_unit(there.weights)[3].clone()
    fused = FusedAdamW(there, [0, 1, 2], betas, clip)
    for step in range(1, 4):
        gradients = [
            torch.randn(unit.shape).to(dtype)
            for unit, dtype in zip(here.units, (torch.bfloat16, torch.float32, torch.bfloat16), strict=True)
        ]
        expected = clipped_adamw(here, gradients, 1e-2, betas, clip)
        on_gpu = [*(gradient.cuda() for gradient in gradients), torch.full((16,), float("nan"), device="cuda")]
        told = torch.from_numpy(settings(1e-2, np.array([step, step, step, 0]), betas)).cuda()
        agree(fused(on_gpu, told), expected, 1e-5)
    assert torch.equal(there.by_unit(there.weights)[3], resting)
    for name in ("weights", "exp_avg", "exp_avg_sq"):
        found = there.by_name(getattr(there, name))
        for unit, tensor in here.by_name(getattr(here, name)).items():
            agree(found[unit], tensor, 1e-5)
    for ours, theirs in zip(there.copies, here.copies, strict=False):
        agree(ours, theirs, ROUNDING[precision])
