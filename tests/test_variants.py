"""Variants: one grammar, written and read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm import variants
from oelm.errors import UserError
from oelm.model.orthogonal import DRAW
from oelm.variants import Side, Variant, When

TRAINED = When("trained")

matrices = [source for source in variants.SOURCES if source not in variants.TENSORS]
whens = st.sampled_from([When(), When("trained")])
whens |= st.builds(When, kind=st.sampled_from(["freeze", "thaw"]), number=st.integers(1, 99), percent=st.booleans())
whens |= st.builds(When, kind=st.just("every"), number=st.integers(2, 10**9))
sides = st.builds(Side, source=st.sampled_from(matrices), when=whens)
sides |= st.builds(Side, source=st.sampled_from(sorted(variants.TENSORS)))


@given(st.builds(Variant, q=sides, k=sides))
def test_every_variant_survives_being_written_and_read(variant: Variant) -> None:
    assert variants.parse(str(variant)) == variant


def test_names_stand_for_what_the_study_meant() -> None:
    assert variants.parse("baseline") == Variant(Side("normal", TRAINED), Side("normal", TRAINED))
    assert variants.parse("oelm_v2") == Variant(Side("headwise"), Side("headwise"))
    assert variants.parse("oelm_random") == Variant(Side("normal"), Side("normal"))
    assert variants.parse("oelm_global") == Variant(Side("global"), Side("global"))
    assert variants.parse("oelm_matched") == Variant(Side("matched"), Side("matched"))
    assert variants.parse("orthogonal_trainable") == Variant(Side("headwise", TRAINED), Side("headwise", TRAINED))


def test_only_q_can_be_frozen() -> None:
    assert variants.parse("q=headwise,k=normal+trained") == Variant(Side("headwise"), Side("normal", TRAINED))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("oelm_v3x", "did you mean oelm_v2"),
        ("headwise+lowrnk", "unknown part 'lowrnk'"),
        ("headwise+trained+trained", "may be followed by one part, not 2"),
        ("normal+freeze(0)", r"freeze\(0\) is out of range: from 1 to"),
        ("normal+every(1)", "from 2 to"),
        ("normal+thaw(100%)", "from 1 to 99"),
        ("normal+every(50%)", "unknown part"),
        ("normal+freeze", "unknown part"),
        ("shuffle+thaw(3)", "shuffle is no matrix"),
        ("q=headwise", "names Q alone"),
        ("identity+trained", "identity is no matrix, so there is nothing to train in it"),
        ("", "unknown variant"),
    ],
)
def test_a_wrong_variant_is_named_and_helped(text: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint.replace("+", r"\+")):
        variants.parse(text)


def test_every_source_can_be_drawn() -> None:
    assert DRAW.keys() == {source for source in variants.SOURCES if Side(source).tensor}


@pytest.mark.parametrize(
    ("text", "name", "title"),
    [
        ("baseline", "baseline", "Baseline"),
        ("normal+trained", "baseline", "Baseline"),
        ("q=headwise,k=headwise", "oelm_v2", "OELM-Freeze"),
        ("q=headwise,k=normal+trained", "q=headwise,k=normal+trained", "q=headwise,k=normal+trained"),
    ],
)
def test_a_variant_has_one_name_however_it_is_written(text: str, name: str, title: str) -> None:
    assert variants.name_of(variants.parse(text)) == name
    assert variants.title(text) == title


def test_every_name_has_a_title() -> None:
    assert variants.TITLES.keys() == variants.NAMED.keys()


def test_when_a_matrix_trains() -> None:
    late, early, seldom = (variants.parse(f"normal+{part}").q.when for part in ("freeze(30%)", "thaw(7)", "every(3)"))
    assert [late.trains(step, 10) for step in range(5)] == [True, True, True, False, False]
    assert [early.trains(step, 10) for step in range(6, 8)] == [False, True]
    assert [seldom.trains(step, 10) and not seldom.rests(step) for step in range(4)] == [True, False, False, True]
    assert (late.at_birth, early.at_birth, seldom.at_birth) == (True, False, True)


def test_what_is_offered_for_a_wrong_variant_can_be_had() -> None:
    with pytest.raises(UserError) as said:
        variants.parse("nothing like it")
    offered = str(said.value).partition("There are: ")[2].split(", ")
    for name in offered:
        variants.parse(name.replace("[+trained]", ""))
        variants.parse(name.replace("[", "").replace("]", ""))
    assert {"shuffle", "identity", "headwise[+trained]"} <= set(offered)
