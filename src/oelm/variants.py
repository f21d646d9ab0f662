"""The science on one page: each named variant, and what it does to the Query and Key projections.

A variant says, for each side (Q and K), where the matrix comes from and when it trains. It is written in one
grammar for flags, YAML, folder names and tables:

    headwise                        both sides drawn head-wise orthogonal, frozen from birth
    headwise+trained                the same matrices, trained like any other
    q=headwise,k=normal+trained     only Q frozen
    normal+freeze(3000)             trained, and frozen from step 3,000 on; freeze(30%): from there in the run
    headwise+thaw(3000)             frozen, and trained from step 3,000 on
    normal+every(4)                 trained, but updated only in every fourth step

V, the output projection, the feed-forward layers, norms and embeddings train in every variant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from oelm.errors import UserError, did_you_mean

SOURCES = {
    "normal": "Gaussian N(0, 0.02), GPT-2's own initialisation",
    "headwise": "orthogonal within each head: the QR factor of a d_model × d_head Gaussian per head",
    "global": "orthogonal as a whole: the QR factor of one d_model × d_model Gaussian",
    "matched": "Gaussian N(0, 1/d_model): the scale of the orthogonal ones without their orthogonality",
    "shuffle": "a signed permutation of the channels: orthogonal, and no product to compute",
    "identity": "nothing at all: each head reads its slice of the normalised stream",
}

# What a source leaves in the model: a matrix, unless it stands here.
TENSORS = {"shuffle": "order", "identity": None}

NAMED = {
    "baseline": "normal+trained",
    "oelm_v2": "headwise",
    "oelm_random": "normal",
    "oelm_global": "global",
    "oelm_matched": "matched",
    "orthogonal_trainable": "headwise+trained",
    "oelm_shuffle": "shuffle",
    "identity_q": "q=identity,k=normal+trained",
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
}


@dataclass(frozen=True)
class When:
    """When a matrix trains: `kind` is frozen, trained, freeze, thaw or every; `number` what stands in brackets."""

    kind: str = "frozen"
    number: int = 0
    percent: bool = False

    @property
    def at_birth(self) -> bool:
        """Whether it trains in the first step."""
        return self.kind in ("trained", "freeze", "every")

    def change(self, max_steps: int) -> int | None:
        """The step from which on it is frozen or trained, if that ever changes."""
        if self.kind not in ("freeze", "thaw"):
            return None
        return max(1, round(self.number / 100 * max_steps)) if self.percent else self.number

    def trains(self, step: int, max_steps: int) -> bool:
        """Whether it belongs to what is optimised in a step."""
        change = self.change(max_steps)
        return self.at_birth if change is None or step < change else not self.at_birth

    def rests(self, step: int) -> bool:
        """Whether it is left out in a step, although it is trained."""
        return self.kind == "every" and step % self.number != 0

    def __str__(self) -> str:
        if self.kind in ("frozen", "trained"):
            return self.kind
        return f"{self.kind}({self.number}{'%' if self.percent else ''})"


@dataclass(frozen=True)
class Side:
    """What happens to one of the two projections."""

    source: str
    when: When = When()

    @property
    def trained(self) -> bool:
        """Whether it trains from birth."""
        return self.when.at_birth

    @property
    def tensor(self) -> str | None:
        """The name of the tensor that the model keeps for it."""
        return TENSORS.get(self.source, "weight")

    @property
    def multiplies(self) -> bool:
        """Whether it is a matrix product."""
        return self.tensor == "weight"

    def __str__(self) -> str:
        return self.source if self.when == When() else f"{self.source}+{self.when}"


@dataclass(frozen=True)
class Variant:
    q: Side
    k: Side

    @property
    def sides(self) -> dict[str, Side]:
        return {"q": self.q, "k": self.k}

    def __str__(self) -> str:
        return str(self.q) if self.q == self.k else f"q={self.q},k={self.k}"


def parse(text: str) -> Variant:
    """The variant that a name or a spec stands for."""
    spec = NAMED.get(text, text)
    if not spec.startswith("q="):
        side = _parse_side(spec, text)
        return Variant(side, side)
    q, separator, k = spec.removeprefix("q=").partition(",k=")
    if not separator:
        raise UserError(f"variant {text!r} names Q alone; write q=…,k=…")
    return Variant(_parse_side(q, text), _parse_side(k, text))


def name_of(variant: Variant) -> str:
    """The name of a variant, or its spec where it has none."""
    spec = str(variant)
    return next((name for name, named in NAMED.items() if named == spec), spec)


def title(text: str) -> str:
    """How a variant is shown to people, whichever way it was written."""
    name = name_of(parse(text))
    return TITLES.get(name, name)


def _parse_side(spec: str, whole: str) -> Side:
    source, *parts = spec.split("+")
    if source not in SOURCES:
        there = ", ".join([*NAMED, *(f"{name}[+trained]" if Side(name).multiplies else name for name in SOURCES)])
        raise UserError(f"unknown variant {whole!r}: {did_you_mean(source, [*NAMED, *SOURCES])}There are: {there}")
    if len(parts) > 1:
        raise UserError(f"variant {whole!r}: a source may be followed by one part, not {len(parts)}; {PARTS}")
    side = Side(source, _parse_when(parts[0], whole) if parts else When())
    if side.when != When() and not side.multiplies:
        raise UserError(f"variant {whole!r}: {source} is no matrix, so there is nothing to train in it")
    return side


PARTS = "there are +trained, +freeze(STEP), +thaw(STEP) (or a share of the run: 30%) and +every(STEPS)"


def _parse_when(part: str, whole: str) -> When:
    if part == "trained":
        return When("trained")
    match = re.fullmatch(r"(freeze|thaw|every)\((\d{1,10})(%?)\)", part)
    if match is None or (match[1] == "every" and match[3]):
        raise UserError(f"variant {whole!r}: unknown part {part!r}; {PARTS}")
    when = When(match[1], int(match[2]), bool(match[3]))
    least, most = (2 if when.kind == "every" else 1), (99 if when.percent else 10**10)
    if not least <= when.number <= most:
        raise UserError(f"variant {whole!r}: {part} is out of range: from {least} to {most:,}")
    return when
