"""The science on one page: each named variant, and what it does to the Query and Key projections.

A variant says, for each side (Q and K), where its matrix comes from, when that trains, and what corrects it. It is
written in one grammar for flags, YAML, folder names and tables, a source and then parts in any order:

    headwise                            both sides drawn head-wise orthogonal, frozen from birth
    headwise+trained                    the same matrices, trained like any other
    q=headwise,k=normal+trained         only Q frozen
    normal+freeze(3000)                 trained, and frozen from step 3,000 on
    headwise+lowrank(32),k+shift        frozen, with a trained correction of rank 32; K reads a mix of two tokens
    headwise+lowrank(6.25%)             a correction whose rank is a sixteenth of the model's width

V, the output projection, the feed-forward layers, norms and embeddings train in every variant.
"""

from __future__ import annotations

import dataclasses

from oelm import grammar
from oelm.errors import UserError
from oelm.specs import CORRECTIONS, PLAIN, Side, Variant, When, tensor_of

NAMED = {
    "baseline": "normal+trained",
    "baseline_shift": "normal+trained,k+shift",
    "baseline_vectors": "normal+trained+bias+vectors(10),k+shift",
    "oelm_v3": "headwise+lowrank(6.25%),k+shift",
    "oelm_v3_lite": "headwise+lowrank(3.125%),k+shift",
    "oelm_slices": "identity+gain+bias+vectors(10),k+shift",
    "oelm_v2": "headwise",
    "oelm_random": "normal",
    "oelm_global": "global",
    "oelm_matched": "matched",
    "orthogonal_trainable": "headwise+trained",
    "oelm_shuffle": "shuffle",
    "identity_q": "q=identity,k=normal+trained",
    "thin_keys": "normal+trained+thin(4)",
}

TITLES = {
    "baseline": "Baseline",
    "baseline_shift": "Baseline with shift",
    "baseline_vectors": "Baseline with shift and biases",
    "oelm_v3": "OELM-v3",
    "oelm_v3_lite": "OELM-v3 lite",
    "oelm_slices": "OELM-Slices",
    "oelm_v2": "OELM-Freeze",
    "oelm_random": "OELM-Random",
    "oelm_global": "OELM-Global",
    "oelm_matched": "OELM-Matched",
    "orthogonal_trainable": "Orthogonal, trained",
    "oelm_shuffle": "OELM-Shuffle",
    "identity_q": "Identity Q",
    "thin_keys": "Thin keys",
}


# What a trained matrix does not contain already, as it does a correction of low rank, a core, a gain or a temperature;
# and rates of its own.
EXTRAS = ("shift", "residual", "bias", "rate", "vectors")
ORTHOGONAL = ("headwise", "global", "shuffle", "identity")  # sources
DENSE = ("headwise", "global")  # those of them that mix channels, as a Gaussian does


def parse(text: str) -> Variant:
    """The variant that a name or a spec stands for."""
    return grammar.parse(NAMED.get(text, text), text, NAMED)


def spells(text: str, variant: Variant) -> bool:
    """Whether a text, perhaps of another version, stands for a variant."""
    try:
        return parse(text) == variant
    except UserError:
        return False


def name_of(variant: Variant) -> str:
    """The name of a variant, or its spec where it has none."""
    spec = str(variant)
    return next((name for name, named in NAMED.items() if named == spec), spec)


def title(text: str) -> str:
    """How a variant is shown to people, whichever way it was written."""
    name = name_of(parse(text))
    return TITLES.get(name, name)


def fair_baseline(variant: Variant) -> Variant:
    """The baseline with all that a variant has besides freezing and its repair; without, its gap would be flattered."""

    def fair(side: Side) -> Side:
        equal = Side("normal", When("trained"), **{part: getattr(side, part) for part in EXTRAS})
        if equal.vectors == 1 or equal.has_vectors:
            return equal
        if side.has_vectors:  # gains that train faster than a matrix are more than it contains
            return dataclasses.replace(equal, gain=side.gain, temperature=side.temperature)
        return dataclasses.replace(equal, vectors=1.0)

    return Variant(fair(variant.q), fair(variant.k))


def extras(variant: Variant) -> list[str]:
    """The parts that a variant shares with its fair baseline, and the plain baseline lacks."""
    sides = fair_baseline(variant).sides.values()
    return [part for part in EXTRAS if any(getattr(side, part) != PLAIN[part] for side in sides)]


def repaired(variant: Variant) -> bool:
    """Whether a frozen orthogonal matrix of it is corrected."""
    return any(_is_kept_orthogonal(side) and side.corrected for side in variant.sides.values())


def over(variant: Variant, source: str) -> Variant | None:
    """The variant with its corrections over another source instead of frozen orthogonal matrices.

    Over zero that is said of the corrected sides alone, for the other would be nothing at all. None where there is
    nothing to replace, where more than one thing would be another, or where something would have no effect.
    """
    kept = [side for side in variant.sides.values() if _is_kept_orthogonal(side)]
    if source != "zero" and any(side.source not in DENSE for side in kept):
        return None

    def put(side: Side) -> Side:
        replaced = _is_kept_orthogonal(side) and (side.corrected or source != "zero")
        return (
            dataclasses.replace(side, source=source, tied=side.tied and tensor_of(source) is not None)
            if replaced
            else side
        )

    other = Variant(put(variant.q), put(variant.k))
    return _sensible(other) if repaired(variant) else None


def without(variant: Variant, part: str) -> Variant | None:
    """The variant without one of its corrections, on either side; None where it has no such."""
    q, k = (dataclasses.replace(side, **{part: PLAIN[part]}) for side in variant.sides.values())
    return None if (q, k) == (variant.q, variant.k) else _sensible(Variant(q, k))


def corrections(variant: Variant) -> list[str]:
    return [part for part in CORRECTIONS if any(getattr(s, part) != PLAIN[part] for s in variant.sides.values())]


def _is_kept_orthogonal(side: Side) -> bool:
    return side.source in ORTHOGONAL and not side.when.ever


def _sensible(variant: Variant) -> Variant | None:
    """The variant, unless a part of it would have no effect."""
    return variant if spells(str(variant), variant) else None
