"""The built-in corpus: little stories told from a seed, so that everything can be tried without a download.

Each story draws its own people, things, places and cause, and takes them up again sentences later: who lost what, why
it was gone, who helped, what was learnt. Guessing those words needs the earlier sentences, so attention matters.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

GIRLS = """Ada Amy Anna Bella Clara Daisy Ella Emma Eva Flora Grace Hanna Ida Iris Jane Julia Kate Lena Lily Lola Lucy
Maya Mia Mina Nina Nora Olive Pia Rosa Ruby Sara Sofia Stella Tess Vera Willa Zoe""".split()
BOYS = """Adam Alex Anton Ben Bruno Carl Dan David Eli Emil Felix Finn Frank Fred George Hugo Ivan Jack Jacob Jim Leo
Liam Louis Luke Mark Max Milo Noah Oscar Otto Paul Peter Ralph Sam Theo Tim Tom Victor Will""".split()
ANIMALS = "bear bird cat dog duck fox frog goat hare hen horse mouse owl pig rabbit sheep squirrel turtle".split()
COLOURS = "black blue brown gold green grey orange pink purple red silver white yellow".split()
THINGS = """ball bell boat book bottle box bucket candle coat cup doll drum flute hat horn jar kite lamp map mask
mirror pencil puppet ribbon ring rope scarf shell spoon stone sword top train wagon whistle""".split()
FOODS = "apples bread berries cake carrots cheese cookies corn honey jam nuts pears pie plums rice soup".split()
PLACES = ["the barn", "the beach", "the bridge", "the castle", "the cave", "the farm", "the field", "the forest",
          "the garden", "the harbour", "the hill", "the lake", "the market", "the meadow", "the mill", "the park",
          "the pond", "the river", "the school", "the tower", "the valley", "the village", "the well"]  # fmt: skip
WEATHER = ["a strong wind", "a sudden storm", "heavy rain", "thick fog", "deep snow"]
HIDING = ["behind the door", "inside an old boot", "on top of the shelf", "under a pile of leaves", "under the bed",
          "in a hollow tree", "between two rocks", "below the stairs"]  # fmt: skip
SKILLS = ["climb trees", "dance", "draw", "fly a kite", "juggle", "paint", "play chess", "read", "ride a bike", "sew",
          "sing", "skip rope", "swim", "tell jokes", "tie knots", "whistle"]  # fmt: skip
OPENINGS = [
    "Once upon a time",
    "One day",
    "Long ago",
    "One morning",
    "Last summer",
    "One cold winter",
    "Many years ago",
]


@dataclass(frozen=True)
class Person:
    name: str
    subject: str
    object: str
    owner: str
    kind: str


class Teller:
    """Draws the parts of one story from its own random stream."""

    def __init__(self, seed: int, number: int) -> None:
        self._random = random.Random(f"storybook/{seed}/{number}")
        self._used: set[str] = set()

    def pick(self, options: list[str]) -> str:
        """One of the options, never the same twice within a story."""
        fresh = [option for option in options if option not in self._used]
        choice = self._random.choice(fresh)
        self._used.add(choice)
        return choice

    def say(self, *phrasings: str) -> str:
        return self._random.choice(phrasings)

    def person(self) -> Person:
        if self._random.random() < 0.5:
            return Person(self.pick(GIRLS), "she", "her", "her", "girl")
        return Person(self.pick(BOYS), "he", "him", "his", "boy")

    def thing(self) -> str:
        return f"{self.pick(COLOURS)} {self.pick(THINGS)}"


def article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def lost_and_found(t: Teller) -> list[str]:
    hero, friend, thing = t.person(), t.person(), t.thing()
    noun, place, cause, spot = thing.split()[1], t.pick(PLACES), t.pick(WEATHER), t.pick(HIDING)
    return [
        f"{t.pick(OPENINGS)}, there was a {hero.kind} named {hero.name} who had {article(thing)}.",
        f"{hero.name} took the {noun} along wherever {hero.subject} went, even to {place}.",
        f"But near {place}, {cause} came up, and {hero.name} lost the {thing}.",
        t.say(f"{hero.name} cried and cried.", f"{hero.name} looked everywhere, but it was gone."),
        f'"Why are you sad, {hero.name}?" asked {friend.name}.',
        f'"Because of {cause}, my {thing} is gone," said {hero.name}.',
        f"So {friend.name} and {hero.name} went back to {place} together.",
        f'{friend.name} looked {spot}. "{hero.name}, come here!" {friend.subject} called.',
        f"There, {spot}, was the {thing}.",
        f"{hero.name} hugged {friend.name} and thanked {friend.object} for finding the {noun}.",
        f"From then on, {hero.name} never took the {noun} to {place} when there was {cause}.",
    ]


def the_gift(t: Teller) -> list[str]:
    giver, friend, thing = t.person(), t.person(), t.thing()
    noun, food, place = thing.split()[1], t.pick(FOODS), t.pick(PLACES)
    return [
        f"{t.pick(OPENINGS)}, {giver.name} wanted to give {friend.name} a present.",
        f"{friend.name} had always wished for {article(thing)}, but {giver.name} had no money.",
        f"So {giver.name} made some {food} and sold the {food} at {place}.",
        t.say(f"Everybody at {place} liked the {food}.", f"Before noon the {food} ran out."),
        f"With the money from the {food}, {giver.name} bought the {thing}.",
        f"{giver.subject.title()} put the {noun} into a box and went to see {friend.name}.",
        f'"Is this {noun} really for me?" asked {friend.name}. "Yes, {friend.name}, it is yours," said {giver.name}.',
        f"{friend.name} was so happy that {friend.subject} showed the {thing} to everyone at {place}.",
        f'"It is from {giver.name}," {friend.subject} said, "who sold {food} to get it."',
    ]


def learning(t: Teller) -> list[str]:
    pupil, teacher, skill = t.person(), t.pick(ANIMALS), t.pick(SKILLS)
    place, food, colour = t.pick(PLACES), t.pick(FOODS), t.pick(COLOURS)
    return [
        f"{t.pick(OPENINGS)}, {pupil.name} wanted to learn how to {skill}.",
        f"At {place}, {pupil.subject} met {article(colour)} {teacher} who could {skill} very well.",
        f'"Can you teach me to {skill}?" asked {pupil.name}.',
        f'"I can," said the {teacher}, "if you bring me {food} every day, {pupil.name}."',
        f"So every day {pupil.name} walked to {place} with {food} for the {colour} {teacher}.",
        t.say(f"At first it was hard, and {pupil.name} wanted to give up.", f"{pupil.name} tried again and again."),
        f'"Do not worry, {pupil.name}," said the {teacher} and ate the {food}.',
        f"After many days, {pupil.name} could {skill} as well as the {teacher}.",
        f"When people asked who had taught {pupil.object} to {skill}, {pupil.name} smiled.",
        f'"{article(colour).capitalize()} {teacher} at {place}," {pupil.subject} said, "and all it cost was {food}."',
    ]


def the_swap(t: Teller) -> list[str]:
    first, second, mine, yours = t.person(), t.person(), t.thing(), t.thing()
    place, cause = t.pick(PLACES), t.say("too small", "too loud", "too heavy", "too old", "too plain")
    my_noun, your_noun = mine.split()[1], yours.split()[1]
    return [
        f"{t.pick(OPENINGS)}, {first.name} had {article(mine)} and {second.name} had {article(yours)}.",
        f"{first.name} thought that the {my_noun} was {cause}.",
        f'They met at {place}. "Shall we swap, {second.name}?" asked {first.name}.',
        f"{second.name} gave {first.name} the {yours} and took the {mine}.",
        t.say("At first both were pleased.", "They shook hands and went home."),
        f"But that night {first.name} missed the {mine}, and {second.name} missed the {yours}.",
        f'"The {my_noun} was not {cause} at all," thought {first.name}.',
        f"In the morning {first.name} ran to {place}, and there was {second.name} with the {my_noun}.",
        f'"I want my {your_noun} back!" said {second.name}, and {first.name} laughed.',
        f"So {second.name} got the {yours} again, and {first.name} went home with the {mine}.",
    ]


def the_rescue(t: Teller) -> list[str]:
    hero, animal, colour = t.person(), t.pick(ANIMALS), t.pick(COLOURS)
    place, cause, tool, food = t.pick(PLACES), t.pick(WEATHER), t.pick(THINGS), t.pick(FOODS)
    return [
        f"{t.pick(OPENINGS)}, {article(colour)} {animal} lived near {place}.",
        f"One evening {cause} came, and the {animal} could not get home.",
        f"{hero.name} heard the {animal} cry and ran to {place} with {article(tool)}.",
        t.say(f'"I am coming!" {hero.subject} called.', f"{hero.name} was afraid, but {hero.subject} did not stop."),
        f"With the {tool}, {hero.name} got the {colour} {animal} out and carried it home.",
        f"{hero.name} gave it {food}, because {hero.subject} had nothing but {food}.",
        f'"Thank you, {hero.name}," said the {animal}. "Without you and your {tool}, {cause} would have been my end."',
        f"Since that day, whenever there is {cause}, the {colour} {animal} comes to the house of {hero.name}.",
        f"And {hero.name} always has some {food} ready for the {animal}.",
    ]


PLOTS: list[Callable[[Teller], list[str]]] = [lost_and_found, the_gift, learning, the_swap, the_rescue]


def tell(seed: int, number: int) -> str:
    """Story number so-and-so of the book with this seed."""
    teller = Teller(seed, number)
    plot = PLOTS[number % len(PLOTS)]
    return " ".join(plot(teller))


def stories(count: int, seed: int = 0) -> Iterator[str]:
    return (tell(seed, number) for number in range(count))
