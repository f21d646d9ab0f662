"""Colours, dashes and markers, the same for a variant wherever it is drawn."""

from __future__ import annotations

from collections.abc import Sequence

from oelm.analysis.compare import Row
from oelm.reporting.blocks import Style

INK = "ink"  # the colour of the text around, light or dark
# Okabe and Ito's colours, which the colour-blind tell apart, a little darker where white would swallow them.
COLOURS = {
    "baseline": INK,
    "baseline_shift": "#7d7d7d",
    "baseline_vectors": "#a6761d",
    "oelm_v3": "#9b3fb5",
    "oelm_slices": "#1b7f5c",
    "oelm_v2": "#0072b2",
    "oelm_random": "#d55e00",
    "oelm_matched": "#009e73",
    "orthogonal_trainable": "#cc79a7",
    "oelm_global": "#c98a00",
    "oelm_shuffle": "#3f9fd8",
    "identity_q": "#8c6bb1",
}
DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*<>"

Styled = Sequence[tuple[Row, Style]]


def styled(rows: Sequence[Row]) -> Styled:
    """Each row with a style of its own: the colour of its variant, or the next that is free."""
    free = [colour for name, colour in COLOURS.items() if name not in {row.model_type for row in rows}]
    arms: list[tuple[Row, Style]] = []
    for i, row in enumerate(rows):
        used = {style.colour for _, style in arms}
        colour = COLOURS.get(row.model_type)
        if colour is None or colour in used:
            colour = free.pop(0) if free else list(COLOURS.values())[i % len(COLOURS)]
        dash = DASHES[i % len(DASHES)] if i < len(COLOURS) else DASHES[(i // len(COLOURS) + i) % len(DASHES)]
        arms.append((row, Style(colour, dash, MARKERS[i % len(MARKERS)])))
    return arms
