"""How a variant is spelled: a source and then parts, in any order, joined by +; after a comma, what Q or K has besides.

    headwise+lowrank(32)                both sides
    headwise+lowrank(32),k+shift        both sides, and K with a shift
    q=identity,k=normal+trained         sides of different sources

Variants are read here, and refused where a part of them could have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from oelm.errors import UserError, did_you_mean
from oelm.specs import PLAIN, SOURCES, VECTORS, Rank, Share, Side, Variant, When


def parse(spec: str, whole: str, names: Iterable[str]) -> Variant:
    """The variant that a spec stands for; `whole` is what the user wrote, `names` what might have been meant."""
    q, k = _sides(spec, whole)
    variant = Variant(_parse_side(q, whole, names), _parse_side(k, whole, names))
    if variant.q.thin != variant.k.thin:
        raise UserError(f"variant {whole!r}: thin must be the same for Q and K, whose products are the logits")
    if reason := senselessly_tied(variant):
        raise UserError(f"variant {whole!r}: {reason}")
    if variant.q != variant.k and (variant.q.is_nothing or variant.k.is_nothing):
        raise UserError(f"variant {whole!r}: where one side is zero all logits are, and the other has no effect")
    return variant


def _sides(spec: str, whole: str) -> tuple[str, str]:
    """What is said of Q, and what of K."""
    if re.match(r"k=|[qk]\+", spec):
        raise UserError(f"variant {whole!r} is half of one; in a YAML list, put a spec with a comma in quotes")
    if spec.startswith("q="):
        q, separator, k = spec.removeprefix("q=").partition(",k=")
        if not separator:
            raise UserError(f"variant {whole!r} names Q alone; write q=…,k=…")
        return q, k
    both, *more = spec.split(",")
    own = {piece[:1]: piece[1:] for piece in more}
    if len(own) < len(more) or not all(re.match(r"[qk]\+", piece) for piece in more):
        raise UserError(
            f"variant {whole!r}: after what both sides have, a comma and q+… or k+… say what one of them has besides, "
            f"such as headwise,k+shift; for sides of different sources write q=…,k=…"
        )
    return both + own.get("q", ""), both + own.get("k", "")


def _flag(argument: str | None) -> bool:
    if argument is not None:
        raise ValueError("takes nothing in brackets")
    return True


def _whole(least: int, most: int, default: int | None = None) -> Callable[[str | None], int]:
    def read(argument: str | None) -> int:
        if argument is None and default is not None:
            return default
        if not re.fullmatch(r"\d{1,11}", argument or "") or not least <= int(argument or 0) <= most:
            raise ValueError(f"takes a whole number from {least:,} to {most:,}")
        return int(argument or 0)

    return read


def _rank(argument: str | None) -> Rank:
    if re.fullmatch(r"\d{1,2}(\.\d{1,3})?%", argument or "") and float((argument or "").rstrip("%")):
        return Share(float((argument or "").rstrip("%")))
    with suppress(ValueError):
        return _whole(1, 65536)(argument)
    raise ValueError("takes a rank from 1 to 65,536, or a share of the model's width such as 6.25%")


def _percent(argument: str | None) -> int:
    if not re.fullmatch(r"[1-9]\d?%", argument or ""):
        raise ValueError("takes a share from 1% to 99%")
    return int((argument or "").rstrip("%"))


def _span(argument: str | None) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", argument or "")
    if not match or int(match[1]) > int(match[2] or match[1]):
        raise ValueError("takes a layer, counted from 0, or a span of them such as 2-5")
    return int(match[1]), int(match[2] or match[1])


def _factor(argument: str | None) -> float:
    if not re.fullmatch(r"\d{1,3}(\.\d{1,9})?", argument or "") or not 0 < float(argument or 0) <= 100:
        raise ValueError("takes a number above 0, up to 100")
    return float(argument or 0)


def _step(kind: str) -> Callable[[str | None], When]:
    def read(argument: str | None) -> When:
        match = re.fullmatch(r"(\d{1,11})(%?)(?:-(\d{1,11})\2)?", argument or "")
        percent = bool(match and match[2])
        numbers = [int(number) for number in match.group(1, 3) if number] if match else []
        if not numbers or not all(1 <= number <= (99 if percent else 10**10) for number in numbers):
            raise ValueError("takes a step from 1, a share of the run from 1% to 99%, or two of them for a span")
        return When(kind, numbers[0], numbers[1] if len(numbers) == 2 else None, percent)

    return read


# Each part: what is read from its brackets, how it is written, what it does.
PARTS: dict[str, tuple[Callable[[str | None], Any], str, str]] = {
    "trained": (lambda a: When("trained") if _flag(a) else None, "trained", "the matrix trains"),
    "freeze": (_step("freeze"), "freeze(STEP)", "it trains, and is frozen from that step on"),
    "thaw": (_step("thaw"), "thaw(STEP)", "it is frozen, and trains from that step on"),
    "every": (lambda a: When("every", _whole(2, 10**10)(a)), "every(STEPS)", "it is updated in every so many steps"),
    "layers": (_span, "layers(0-2)", "that holds in these layers; in the others it trains"),
    "heads": (_percent, "heads(50%)", "that holds for this share of the heads, the first ones; the others train"),
    "thin": (_whole(2, 1024), "thin(4)", "heads of Q and K are that much narrower"),
    "tied": (_flag, "tied", "K's frozen matrix is Q's own"),
    "shift": (_whole(1, 8, default=1), "shift", "it reads a trained mix of a token and the one before (shift(3): 3)"),
    "core": (_flag, "core", "a trained d_head × d_head matrix per head, after it"),
    "lowrank": (
        _rank,
        "lowrank(32)",
        "a trained matrix of that rank beside it (lowrank(6.25%): a sixteenth of d_model)",
    ),
    "residual": (_rank, "residual(32)", "a trained layer with a GELU beside it, so wide"),
    "gain": (
        lambda a: 1.0 if a is None else _factor(a),
        "gain",
        "a trained factor per channel, 1 at first (gain(0.3): 0.3)",
    ),
    "bias": (_flag, "bias", "a trained addend per channel"),
    "temperature": (_flag, "temperature", "a trained factor per head"),
    "rate": (_factor, "rate(0.3)", "the learning rate of what trains in it, as a multiple of the run's"),
    "vectors": (_factor, "vectors(10)", "the learning rate of its shift, gain, bias and temperature, on top of rate"),
}
WHENS = ("trained", "freeze", "thaw", "every")


def _parse_side(spec: str, whole: str, names: Iterable[str]) -> Side:
    source, *parts = spec.split("+")
    if source not in SOURCES:
        near = did_you_mean(source, [*names, *SOURCES])
        raise UserError(
            f"unknown variant {whole!r}: {near}There are: {', '.join([*names, *SOURCES])}; "
            f"a source may be followed by parts: {forms()}"
        )
    fields: dict[str, Any] = {}
    for part in parts:
        field, value = _parse_part(part, whole)
        if field in fields:
            what = "when it trains" if field == "when" else field
            raise UserError(f"variant {whole!r} says {what} twice")
        fields[field] = value
    side = Side(source, **fields)
    if reason := senseless(side):
        raise UserError(f"variant {whole!r}: {reason}")
    return side


def _parse_part(part: str, whole: str) -> tuple[str, Any]:
    match = re.fullmatch(r"(\w+)(?:\(([^()]*)\))?", part)
    name = match[1] if match else part
    if not match or name not in PARTS:
        raise UserError(f"variant {whole!r}: unknown part {part!r}; {did_you_mean(name, PARTS)}there are {forms()}")
    try:
        return ("when" if name in WHENS else name), PARTS[name][0](match[2])
    except ValueError as error:
        raise UserError(f"variant {whole!r}: {part!r} {error}") from None


def forms() -> str:
    """All parts, as they are written."""
    return ", ".join(f"+{form}" for _, form, _ in PARTS.values())


def senseless(side: Side) -> str:
    """What in a side could have no effect, if anything."""
    if not side.multiplies:
        for name in ("thin", "heads", "layers"):
            if getattr(side, name) != PLAIN[name]:
                return f"{side.source} is no matrix, so {name} says nothing"
        if side.when != When():
            return f"{side.source} is no matrix, so there is nothing to train in it"
    if side.when.kind == "trained" and (side.layers or side.heads != 100):
        return "layers and heads say where a matrix is frozen, and this one never is"
    if side.is_nothing and side.corrected:
        return "zero leaves nothing to correct; add lowrank, residual or bias"
    if side.source == "zero" and not (side.lowrank or side.residual) and (side.shift or side.gain):
        return "over zero, a bias alone reads nothing, so a shift or a gain has no effect"
    if side.source == "zero" and side.core:
        return "zero has no channels that a core could mix"
    if side.rate != 1 and not (side.when.ever or side.corrected or side.layers or side.heads != 100):
        return "nothing trains in it that rate could speed up or slow down"
    if side.vectors != 1 and not side.has_vectors:
        return f"vectors says how fast they train, and it has none of {', '.join(VECTORS)}"
    return ""


def senselessly_tied(variant: Variant) -> str:
    """Why K's matrix cannot be Q's, if a variant says that it is."""
    q, k = variant.q, variant.k
    if q.tied:
        return "tied is said of K, whose matrix is then Q's: write k+tied after a comma"
    if k.tied and (not k.tensor or q.source != k.source):
        return "tied needs a matrix, from the same source on both sides, such as global,k+tied"
    if k.tied and any(side.when != When() or side.layers or side.heads != 100 for side in (q, k)):
        return "only matrices that are frozen everywhere and for good can be tied"
    return ""
