"""Specs: one grammar, written and read."""

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oelm import grammar, specs, variants
from oelm.errors import UserError
from oelm.model.orthogonal import DRAW
from oelm.specs import Share, Side, Variant, When

TRAINED = When("trained")

steps = st.integers(1, 10**10)
shares = st.integers(1, 99)
whens = st.sampled_from([When(), TRAINED])
whens |= st.builds(When, kind=st.sampled_from(["freeze", "thaw"]), number=steps, last=st.none() | steps)
whens |= st.builds(
    When, kind=st.sampled_from(["freeze", "thaw"]), number=shares, last=st.none() | shares, percent=st.just(True)
)
whens |= st.builds(When, kind=st.just("every"), number=st.integers(2, 10**9))
ranks = st.integers(0, 64) | st.integers(1, 99_999).map(lambda thousandths: Share(thousandths / 1000))
rates = st.integers(1, 100 * 10**9).map(lambda billionths: billionths / 10**9)
sides = st.builds(
    Side,
    source=st.sampled_from(sorted(specs.SOURCES)),
    when=whens,
    layers=st.none() | st.tuples(st.integers(0, 9), st.integers(10, 99)) | st.integers(0, 99).map(lambda n: (n, n)),
    heads=st.integers(1, 100),
    thin=st.just(1),
    tied=st.just(False),
    shift=st.integers(0, 8),
    core=st.booleans(),
    lowrank=ranks,
    residual=ranks,
    gain=st.just(0.0) | st.just(1.0) | rates,
    bias=st.booleans(),
    temperature=st.booleans(),
    rate=st.just(1.0) | rates,
    vectors=st.just(1.0) | rates,
)


@given(sides, sides, st.booleans())
def test_every_variant_survives_being_written_and_read(q: Side, k: Side, tied: bool) -> None:
    if tied and not grammar.senselessly_tied(Variant(q, with_it := replace(k, source=q.source, tied=True))):
        k = with_it
    assume(not grammar.senseless(q))
    assume(not grammar.senseless(k))
    assume(q == k or not (q.is_nothing or k.is_nothing))
    variant = Variant(q, k)
    assert variants.parse(str(variant)) == variant


def test_a_rank_may_grow_with_the_model() -> None:
    side = variants.parse("headwise+lowrank(6.25%)+residual(3)").q
    assert [side.rank("lowrank", width) for width in (8, 64, 512)] == [1, 4, 32]  # never none at all
    assert [side.rank("residual", width) for width in (8, 512)] == [3, 3]


def test_parts_may_stand_in_any_order_and_are_written_in_one() -> None:
    one, other = (variants.parse(f"headwise+{parts}") for parts in ("lowrank(32)+shift", "shift(1)+lowrank(32)"))
    assert one == other
    assert str(one) == str(other) == "headwise+shift+lowrank(32)"


@pytest.mark.parametrize(
    ("long", "short"),
    [
        ("q=headwise,k=headwise", "headwise"),
        ("q=headwise,k=headwise+shift", "headwise,k+shift"),
        ("q=headwise+gain+lowrank(4),k=headwise+lowrank(8)+gain", "headwise+gain,q+lowrank(4),k+lowrank(8)"),
        ("q=headwise,k=headwise+trained", "headwise,k+trained"),
        ("q=identity,k=normal+trained", "q=identity,k=normal+trained"),
    ],
)
def test_what_both_sides_have_is_said_once(long: str, short: str) -> None:
    assert str(variants.parse(long)) == short
    assert variants.parse(short) == variants.parse(long)


def test_every_part_says_how_it_is_written() -> None:
    for name, (_, form, says) in grammar.PARTS.items():
        written = form.replace("STEPS", "4").replace("STEP", "30%")
        trained = {"tied": "", "vectors": "+gain"}.get(name, "" if name in grammar.WHENS else "+freeze(9)")
        joint = ",k+" if name == "tied" else "+"
        assert variants.parse(f"normal{trained}{joint}{written}") != variants.parse(f"normal{trained}"), says


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("oelm_v3x", "did you mean oelm_v3"),
        ("headwise+lowrnk(3)", "unknown part 'lowrnk(3)'; did you mean lowrank? there are +trained, +freeze(STEP)"),
        ("headwise+trained+trained", "says when it trains twice"),
        ("headwise+shift+shift(2)", "says shift twice"),
        ("normal+freeze(0)", "takes a step from 1, a share"),
        ("normal+freeze(30%-900)", "takes a step from 1, a share"),
        ("normal+every(1)", "takes a whole number from 2 to"),
        ("normal+thaw(100%)", "takes a step from 1, a share of the run from 1% to 99%"),
        ("normal+every(50%)", "takes a whole number"),
        ("normal+freeze", "takes a step"),
        ("headwise+lowrank", "takes a rank from 1 to 65,536, or a share"),
        ("headwise+lowrank(0%)", "takes a rank from 1 to 65,536, or a share"),
        ("headwise+lowrank(100%)", "takes a rank from 1 to 65,536, or a share"),
        ("headwise+heads(100%)", "takes a share from 1% to 99%"),
        ("headwise+layers(5-2)", "takes a layer"),
        ("headwise+core(2)", "takes nothing in brackets"),
        ("headwise+gain(0)", "takes a number above 0"),
        ("headwise+gain+rate(0)", "takes a number above 0"),
        ("headwise+rate(2)", "nothing trains in it"),
        ("normal+trained+heads(50%)", "this one never is"),
        ("shuffle+thaw(3)", "shuffle is no matrix"),
        ("shuffle+heads(50%)", "shuffle is no matrix, so heads says nothing"),
        ("zero+gain", "zero leaves nothing to correct"),
        ("zero+core+lowrank(3)", "zero has no channels"),
        ("zero+shift+bias", "a bias alone reads nothing"),
        ("zero+gain+bias", "a bias alone reads nothing"),
        ("q=zero,k=normal+trained", "the other has no effect"),
        ("q=zero+bias,k=zero", "the other has no effect"),
        ("q=headwise", "names Q alone"),
        ("k+shift", "is half of one; in a YAML list, put a spec with a comma in quotes"),
        ("headwise+lowrank(2)+vectors(10)", "it has none of shift, gain, bias, temperature"),
        ("headwise+tied", "tied is said of K"),
        ("identity,k+tied", "tied needs a matrix, from the same source on both sides"),
        ("q=global,k=headwise+tied", "tied needs a matrix, from the same source on both sides"),
        ("headwise+freeze(9),k+tied", "only matrices that are frozen everywhere and for good can be tied"),
        ("headwise+heads(50%),k+tied", "only matrices that are frozen everywhere and for good can be tied"),
        ("headwise,shift", "after what both sides have, a comma and q+… or k+…"),
        ("headwise,k+shift,k+gain", "after what both sides have, a comma and q+… or k+…"),
        ("headwise+shift,k+shift", "says shift twice"),
        ("q=headwise+thin(2),k=headwise", "thin must be the same for Q and K"),
        ("identity+trained", "identity is no matrix, so there is nothing to train in it"),
        ("", "unknown variant"),
    ],
)
def test_a_wrong_variant_is_named_and_helped(text: str, hint: str) -> None:
    with pytest.raises(UserError, match=re.escape(hint)):
        variants.parse(text)


def test_every_source_can_be_drawn() -> None:
    assert DRAW.keys() == {source for source in specs.SOURCES if Side(source).tensor}


def test_when_a_matrix_trains() -> None:
    late, early, seldom = (variants.parse(f"normal+{part}").q.when for part in ("freeze(30%)", "thaw(7)", "every(3)"))
    assert [late.trains(step, 10) for step in range(5)] == [True, True, True, False, False]
    assert [early.trains(step, 10) for step in range(6, 8)] == [False, True]
    assert [seldom.trains(step, 10) and not seldom.rests(step) for step in range(4)] == [True, False, False, True]
    assert (late.at_birth, early.at_birth, seldom.at_birth) == (True, False, True)


def test_layers_change_one_after_the_other() -> None:
    side = variants.parse("normal+freeze(20%-60%)").q
    assert [side.in_layer(layer, 5).when.change(100) for layer in range(5)] == [20, 30, 40, 50, 60]
    assert side.in_layer(0, 1).when.change(100) == 20


def test_outside_of_its_layers_a_matrix_trains() -> None:
    side = variants.parse("headwise+layers(1-2)+lowrank(4)").q
    assert [side.in_layer(layer, 4).trained for layer in range(4)] == [True, False, False, True]
    assert all(side.in_layer(layer, 4).lowrank == 4 for layer in range(4))
