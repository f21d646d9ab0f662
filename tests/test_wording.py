"""Numbers read well."""

import math

from oelm.wording import Said, formatted, memory, percent, perplexity, shown


def test_durations_read_well() -> None:
    assert [formatted(s) for s in (8.4, 125, 16287)] == ["8s", "2m 05s", "4h 31m 27s"]


def test_perplexities_read_well_even_when_a_run_has_diverged() -> None:
    assert shown(perplexity(math.log(4.267)), 2) == "4.27"
    assert len(shown(perplexity(5000.0), 2)) < 12


def test_gaps_are_shown_as_ratios_of_perplexities() -> None:
    assert percent(math.log(1.098)) == "+9.8 %"
    assert percent(math.log(0.97)) == "-3.0 %"
    assert len(percent(5000.0)) < 16


def test_sizes_are_shown_in_the_unit_that_fits() -> None:
    assert [memory(size) for size in (300 * 2**20, 2.1 * 2**30)] == ["300 MiB", "2.10 GiB"]


def test_a_sentence_keeps_what_it_was_made_of() -> None:
    said = Said("not tuned for: {arms}, {steps:,} steps", arms=["a", "b"], steps=1000)
    assert said == "not tuned for: a, b, 1,000 steps"
    assert (said.template, said.values["arms"]) == ("not tuned for: {arms}, {steps:,} steps", ["a", "b"])
    assert Said("{all}", all=[Said("one"), Said("two")]) == "one; two"
