"""The built-in corpus: thousands of stories that differ, told the same way each time."""

from oelm.data import storybook


def test_thousands_of_stories_differ() -> None:
    told = list(storybook.stories(5000))
    assert len(set(told)) == 5000


def test_a_seed_tells_the_same_book_again_and_another_seed_another() -> None:
    assert list(storybook.stories(20, seed=3)) == list(storybook.stories(20, seed=3))
    assert not set(storybook.stories(200, seed=3)) & set(storybook.stories(200, seed=4))


def test_what_a_story_is_about_comes_up_again_sentences_later() -> None:
    for number in range(200):
        sentences = storybook.tell(0, number).split(". ")
        half = len(sentences) // 2
        words = [{w.strip('.,"!?') for s in part for w in s.split()} for part in (sentences[:half], sentences[half:])]
        names = set(storybook.GIRLS + storybook.BOYS)
        objects = set(storybook.THINGS + storybook.ANIMALS + storybook.FOODS)
        assert words[0] & words[1] & names
        assert words[0] & words[1] & objects
