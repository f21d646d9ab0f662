"""The science on one page: each named variant, and what it does to the Query and Key projections.

A variant says, for each side (Q and K), where its matrix comes from, when that trains, and what corrects it. It is
written in one grammar for flags, YAML, folder names and tables, a source and then parts in any order:

    headwise                            both sides drawn head-wise orthogonal, frozen from birth
    headwise+trained                    the same matrices, trained like any other
    q=headwise,k=normal+trained         only Q frozen
    normal+freeze(3000)                 trained, and frozen from step 3,000 on
    headwise+lowrank(32)+shift          frozen, with a trained correction of rank 32, reading a mix of two tokens

V, the output projection, the feed-forward layers, norms and embeddings train in every variant.
"""

from __future__ import annotations

from oelm import specs
from oelm.specs import Variant

NAMED = {
    "baseline": "normal+trained",
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
    "oelm_v2": "OELM-Freeze",
    "oelm_random": "OELM-Random",
    "oelm_global": "OELM-Global",
    "oelm_matched": "OELM-Matched",
    "orthogonal_trainable": "Orthogonal, trained",
    "oelm_shuffle": "OELM-Shuffle",
    "identity_q": "Identity Q",
    "thin_keys": "Thin keys",
}


def parse(text: str) -> Variant:
    """The variant that a name or a spec stands for."""
    return specs.parse(NAMED.get(text, text), text, NAMED)


def name_of(variant: Variant) -> str:
    """The name of a variant, or its spec where it has none."""
    spec = str(variant)
    return next((name for name, named in NAMED.items() if named == spec), spec)


def title(text: str) -> str:
    """How a variant is shown to people, whichever way it was written."""
    name = name_of(parse(text))
    return TITLES.get(name, name)
