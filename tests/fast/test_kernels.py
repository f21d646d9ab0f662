"""The kernels for GPUs compute what their plain PyTorch counterparts do, for shapes that fill no block as well."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from oelm.fast import gelu, loss, norm
from oelm.fast.adamw import Flat, Unit, corrections
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


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(
    ("rows", "vocab_size", "width"), [(64, 50257, 50304), (5, 61, 64), (3, 4096, 4096), (2, 2, 64)]
)
@pytest.mark.parametrize("scale", [None, 0.5])
def test_cross_entropy(dtype: torch.dtype, rows: int, vocab_size: int, width: int, scale: float | None) -> None:
    logits = (5 * torch.randn(rows, width)).to(dtype)
    targets = torch.randint(0, vocab_size, (rows,))
    there, here = logits.cuda(), logits.clone()
    agree(
        loss.cross_entropy_(there, targets.cuda(), vocab_size, scale),
        loss.cross_entropy_(here, targets, vocab_size, scale),
        1e-5,
    )
    agree(there, here, ROUNDING[dtype])


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
    from oelm.fast.adamw_kernels import FusedAdamW

    def flat(device: str) -> Flat:
        torch.manual_seed(0)
        tensors = [torch.randn(300, 64), torch.randn(37), torch.randn(5, 7)]
        parameters = [nn.Parameter(tensor.to(device)) for tensor in tensors]
        units = [
            Unit.of({str(i): p}, decay, 8) for i, (p, decay) in enumerate(zip(parameters, (0.1, 0.0, 0.5), strict=True))
        ]
        return Flat(units, precision)

    here, there, betas = flat("cpu"), flat("cuda"), (0.9, 0.95)
    fused = FusedAdamW(there, betas, clip)
    for step in range(1, 4):
        gradients = [
            torch.randn(unit.shape).to(dtype)
            for unit, dtype in zip(here.units, (torch.bfloat16, torch.float32, torch.bfloat16), strict=True)
        ]
        expected = clipped_adamw(here, gradients, 1e-2, betas, clip)
        on_gpu = [gradient.cuda() for gradient in gradients]
        fused.aim(on_gpu)
        agree(fused(torch.tensor([1e-2, *corrections(step, betas)], device="cuda")), expected, 1e-5)
    for name in ("weights", "exp_avg", "exp_avg_sq"):
        agree(getattr(there, name), getattr(here, name), 1e-5)
    for ours, theirs in zip(there.copies, here.copies, strict=True):
        agree(ours, theirs, ROUNDING[precision])
