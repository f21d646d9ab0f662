"""Variants: what the names stand for, and how they are shown."""

import pytest

from oelm import variants
from oelm.config import RunConfig
from oelm.errors import UserError
from oelm.model.cost import step_cost, trained_share
from oelm.specs import Side, Variant, When

TRAINED = When("trained")


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


def test_what_is_offered_for_a_wrong_variant_can_be_had() -> None:
    with pytest.raises(UserError) as said:
        variants.parse("nothing like it")
    offered = str(said.value).partition("There are: ")[2].partition(";")[0].split(", ")
    assert {"shuffle", "identity", "headwise", "baseline"} <= set(offered)
    for name in offered:
        variants.parse(name)


@pytest.mark.parametrize(
    ("variant", "baseline", "extras"),
    [
        ("oelm_v2", "baseline", []),
        ("headwise+lowrank(4)+core+gain+temperature", "baseline", []),  # a trained matrix contains all of these
        ("thin_keys", "baseline", []),
        ("oelm_v3", "baseline_shift", ["shift"]),
        ("zero+residual(3)+bias", "normal+trained+residual(3)+bias", ["residual", "bias"]),
        ("baseline_shift", "baseline_shift", ["shift"]),
        ("headwise+lowrank(4)+rate(3)", "normal+trained+rate(3)", ["rate"]),
        ("oelm_slices", "baseline_vectors", ["shift", "bias", "vectors"]),
        ("headwise+gain+vectors(10),k+shift", "normal+trained+vectors(10),q+gain,k+shift", ["shift", "vectors"]),
        ("headwise+gain", "baseline", []),
    ],
)
def test_the_baseline_is_given_what_is_not_about_freezing(variant: str, baseline: str, extras: list[str]) -> None:
    parsed = variants.parse(variant)
    assert variants.name_of(variants.fair_baseline(parsed)) == baseline
    assert variants.extras(parsed) == extras


def test_v3_trains_an_eighth_of_q_and_k_and_its_lite_form_a_sixteenth() -> None:
    shares = {
        name: trained_share(RunConfig(preset="medium-512", model_type=name)) for name in ("oelm_v3", "oelm_v3_lite")
    }
    assert shares == {"oelm_v3": pytest.approx(0.125, abs=0.005), "oelm_v3_lite": pytest.approx(0.0625, abs=0.005)}


def test_slices_train_vectors_alone() -> None:
    shape = RunConfig(preset="medium-512", positions="rope", model_type="oelm_slices")
    assert trained_share(shape) < 0.005
    assert sum(part.total for part in step_cost(shape, 8).parts if part.name in ("Q projection", "K projection")) == 0


@pytest.mark.parametrize(
    ("variant", "source", "control"),
    [
        ("headwise+lowrank(4)", "zero", "zero+lowrank(4)"),
        ("oelm_v3", "matched", "matched+lowrank(6.25%),k+shift"),
        ("q=headwise+residual(4),k=normal+trained", "identity", "q=identity+residual(4),k=normal+trained"),
        ("q=headwise+lowrank(4),k=headwise", "zero", "q=zero+lowrank(4),k=headwise"),  # K is not corrected
        ("q=headwise+lowrank(4),k=headwise", "matched", "q=matched+lowrank(4),k=matched"),
        ("identity+lowrank(4)", "zero", "zero+lowrank(4)"),
        ("identity+lowrank(4)", "identity", None),  # itself
        ("shuffle+lowrank(4)", "matched", None),  # which mixes channels, too
        ("global+gain,k+tied+shift", "identity", "identity+gain,k+shift"),
        ("global+gain,k+tied", "matched", "matched+gain,k+tied"),
        ("matched+lowrank(4)", "zero", None),  # not orthogonal
        ("q=headwise+lowrank(4),k=headwise+trained", "zero", "q=zero+lowrank(4),k=headwise+trained"),  # K trains
        ("q=headwise+lowrank(4),k=headwise+gain", "zero", None),  # logits that are all zero
        ("headwise+gain", "zero", None),  # a gain of nothing
        ("headwise+lowrank(4)+core", "zero", None),
        ("headwise", "zero", None),  # not corrected
        ("headwise+trained+lowrank(4)", "zero", None),  # not frozen
        ("baseline", "zero", None),
    ],
)
def test_a_correction_can_be_put_over_another_source(variant: str, source: str, control: str | None) -> None:
    put = variants.over(variants.parse(variant), source)
    assert (put and str(put)) == (control and str(variants.parse(control)))


@pytest.mark.parametrize(
    ("variant", "part", "left"),
    [
        ("oelm_v3", "shift", "headwise+lowrank(6.25%)"),
        ("oelm_v3", "lowrank", "q=headwise,k=headwise+shift"),
        ("oelm_v3", "gain", None),  # it has none
        ("zero+lowrank(4)", "lowrank", "zero"),
        ("zero+lowrank(4)+gain", "lowrank", None),  # a gain of nothing
    ],
)
def test_a_correction_can_be_taken_away(variant: str, part: str, left: str | None) -> None:
    rest = variants.without(variants.parse(variant), part)
    assert (rest and str(rest)) == (left and str(variants.parse(left)))
    assert (part in variants.corrections(variants.parse(variant))) == (part != "gain" or "gain" in variant)
