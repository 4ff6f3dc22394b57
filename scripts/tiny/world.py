"""The invented world: its people, things, places and the constant table of facts about its towns.

Word lists are constants, and the table of facts is drawn once from a fixed seed, so that every corpus ever generated
speaks of the same world and a model can know it by heart.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


def words(text: str) -> tuple[str, ...]:
    """The words of a list written as a line of text, which keeps long lists readable."""
    return tuple(text.split())


def phrases(text: str) -> tuple[str, ...]:
    """The entries of a list written as a line of text with bars between them."""
    return tuple(text.split("|"))


WOMEN = words(
    "Ada Alma Anna Beth Bria Cora Clara Dana Della Edith Ella Elsa Emma Faye Flora Freda Gilda Grace Greta Hanna Hazel "
    "Heidi Ida Ines Iris Ivy Jana Jill Julia Kara Kira Laura Lena Lily Lotte Lucy Mara Maya Mina Nora Nina Olga Oona "
    "Paula Petra Rita Rosa Ruth Sally Sara Selma Signe Tara Tess Thea Ursa Vera Wanda Willa Yara"
)

MEN = words(
    "Adam Albin Arlo Arne Axel Ben Bert Boris Bruno Carl Colin Conrad Dario Dirk Edgar Emil Eric Felix Finn Frank "
    "Fritz Gavin Georg Gus Hans Harry Hugo Igor Ivan Jack Jakob Jonas Karl Kurt Lars Leo Linus Luke Marek Max Milo "
    "Nils Noah Oscar Otto Owen Paul Peter Ralf Remy Rolf Rudi Sam Simon Sven Theo Tom Ulf Victor Walter"
)

SURNAME_HEADS = words(
    "Ash Birch Black Cold Dun East Fair Green Hart Kirk Lang Marl North Oak Pen Red Stone Thorn West Wood"
)
SURNAME_TAILS = words("ford well by ham ley ton wick more field brook")
SURNAMES = tuple(head + tail for head in SURNAME_HEADS for tail in SURNAME_TAILS)

ANIMALS = words(
    "badger bat bear beaver bee bison boar camel cat cobra cow crab crane crow deer dog dolphin donkey dove duck eagle "
    "eel falcon ferret finch fox frog goat goose hare hawk hedgehog heron horse kestrel lamb lark lion lizard lynx "
    "magpie mole moose moth mouse mule newt otter owl ox panther parrot pelican pike rabbit ram raven robin salmon "
    "seal shark snail sparrow squirrel stag stork swan swift tiger toad trout turtle walrus wasp weasel whale wolf"
)

FRUITS = words("apples pears plums cherries figs grapes lemons melons oranges peaches quinces berries dates limes")

TOOLS = words("hammer saw chisel drill file wrench shovel rake axe trowel plane clamp needle scythe")

CLOTHES = words("coat scarf hat glove boot shirt belt sock jacket cap apron cloak vest shawl")

INSTRUMENTS = words("flute drum harp fiddle horn lute piano bell trumpet organ whistle zither")

GOODS = words(
    "copper salt wool glass honey timber silk paper cheese wine amber iron leather linen pottery tea coal wheat barley "
    "olives soap rope candles bricks cloth silver tin marble pepper ink butter beer carpets clocks lenses nails pearls "
    "rice sugar tiles"
)

COUNTABLE = words(
    "marbles stamps books coins cards pencils shells beads buttons stickers cups plates nails bricks candles eggs "
    "cakes rolls tickets stones ropes baskets lamps jars boxes bottles flowers seeds tiles spoons"
)

COLOURS = words("red blue green yellow white black purple orange brown silver")
MONTHS = words("January February March April May June July August September October November December")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
SEASONS = words("spring summer autumn winter")

JOBS = words(
    "baker carpenter teacher farmer doctor painter sailor miller tailor gardener smith cook mason weaver fisher potter "
    "singer clerk judge nurse pilot printer shepherd barber butcher engineer grocer hunter lawyer librarian"
)

BUILDINGS = words(
    "library bakery school mill theatre market bridge tower harbour museum garden station bath hospital workshop "
    "lighthouse playground stable granary fountain"
)

LANDMARKS = phrases(
    "old mill|town hall|north gate|stone bridge|river bank|market square|grey tower|school yard|city wall|fish market|"
    "green hill|salt road|south harbour|old well|chapel|orchard"
)

GROUPS = words(
    "children farmers students visitors traders neighbours fishers nurses drivers teachers builders families pupils "
    "workers guests sailors"
)

WEATHER = words("rain snow wind fog frost hail heat thunder")

_TOWN_HEADS = words("Ost Mir Vel Tar Kel Bru Nor Sal Dra Fen Gal Hov Jor Lun Pel Rav Sten Ulm Wes Zan")
_TOWN_TAILS = ("rel", "va", "dorn", "mak", "ena", "burg", "holt", "ova", "und", "ik")
_REGIONS = words("Arvenia Boland Cestria Dovar Elmark Farland Gorvia Harnland Istmark Kestria Lowmark Merovia")
_RIVERS = words(
    "Arn Belva Corr Dane Esk Fal Garn Hule Inver Jass Kelt Lorn Mave Nidd Orva Pell Quill Rhone Sorn Tavy Urr Varn "
    "Wend Yarrow"
)
_WORLD_SEED = 20240229
_TOWN_COUNT = 60


@dataclass(frozen=True)
class Town:
    """One town and what is known of it; the emblem belongs to this town alone."""

    name: str
    region: str
    river: str
    trade: str
    emblem: str
    colour: str
    month: str


@dataclass(frozen=True)
class Person:
    """A person with the pronouns that later sentences refer back with."""

    first: str
    last: str
    she: str
    her: str
    possessive: str

    @property
    def name(self) -> str:
        """Full name, as articles and passages use it."""
        return f"{self.first} {self.last}"


def pick(rng: random.Random, items: Sequence[Item]) -> Item:
    """One item, uniformly: a short name because the generators call it everywhere."""
    return items[rng.randrange(len(items))]


def _build_towns() -> tuple[Town, ...]:
    """The table of facts, drawn once from the fixed seed of the world."""
    rng = random.Random(_WORLD_SEED)
    names = rng.sample([head + tail for head in _TOWN_HEADS for tail in _TOWN_TAILS], _TOWN_COUNT)
    emblems = rng.sample(ANIMALS, _TOWN_COUNT)
    return tuple(
        Town(
            name,
            pick(rng, _REGIONS),
            pick(rng, _RIVERS),
            pick(rng, GOODS),
            emblem,
            pick(rng, COLOURS),
            pick(rng, MONTHS),
        )
        for name, emblem in zip(names, emblems, strict=True)
    )


TOWNS = _build_towns()


def person(rng: random.Random, avoid: str = "") -> Person:
    """A random person whose first name differs from ``avoid`` (so two people in one text stay apart)."""
    while True:
        woman = rng.random() < 0.5
        first = pick(rng, WOMEN if woman else MEN)
        if first != avoid:
            pronouns = ("she", "her", "her") if woman else ("he", "him", "his")
            return Person(first, pick(rng, SURNAMES), *pronouns)


def article(word: str) -> str:
    """The word with its indefinite article."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def capital(text: str) -> str:
    """The text with its first letter in upper case, the rest untouched."""
    return text[:1].upper() + text[1:]


def join(items: Sequence[str]) -> str:
    """An English enumeration: ``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
