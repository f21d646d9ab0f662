"""Figures: the curves that the run folders hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.image import imread

from oelm.analysis.plots import validation_curves
from oelm.config import RunConfig
from oelm.training.loop import fit


def test_each_run_has_a_line_of_its_own_colour(tiny: Callable[..., RunConfig], tmp_path: Path) -> None:
    runs = [
        fit(tiny(model_type=name, max_steps=3, val_interval=1, warmup_steps=1, out_dir=str(tmp_path / name)))
        for name in ("baseline", "oelm_v2")
    ]

    def colours(count: int) -> set[tuple[int, ...]]:
        picture = imread(validation_curves(runs[:count], tmp_path / "figures" / f"{count}.png"))
        assert picture.shape == (630, 1050, 4)
        pixels = (255 * picture[..., :3]).round().astype(int).reshape(-1, 3)
        return {tuple(pixel) for pixel in pixels.tolist()}

    blue, orange = (31, 119, 180), (255, 127, 14)
    assert colours(1) >= {blue}
    assert colours(2) >= {blue, orange}
    assert orange not in colours(1)
