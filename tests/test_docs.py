"""The documents say what the result files say."""

from benchmarks import page
from experiments import page as results


def test_the_performance_page_is_what_its_command_makes_of_the_results() -> None:
    assert page.PAGE.read_text() == page.render(), "run: python -m benchmarks.page"


def test_the_results_page_is_what_its_command_makes_of_the_runs() -> None:
    assert results.PAGE.read_text() == results.render(), "run: python -m experiments.page"
