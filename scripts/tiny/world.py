"""The invented world of the bundled corpus: word lists, towns, persons, and the documents about
them.

All words are in ``texts.yaml``. The table of towns has a fixed seed, so that every corpus describes
the same world and a model can memorise it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

Item = TypeVar("Item")

TEXTS: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("texts.yaml").read_text(encoding="utf-8")
)
WORDS: dict[str, tuple[str, ...]] = {
    name: tuple(text.split()) for name, text in TEXTS["words"].items()
}
LANDMARKS: list[str] = TEXTS["landmarks"]
SURNAMES = tuple(head + tail for head in WORDS["surname_heads"] for tail in WORDS["surname_tails"])
HELD_OUT_SHARE = 32
_WORLD_SEED = 20240229
_TOWN_COUNT = 60


@dataclass(frozen=True)
class Document:
    """A generated conversation: user turns, and the answers, which the turns determine."""

    category: str
    turns: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def key(self) -> str:
        """The hash of the opening turn, which decides between training corpus and question
        suite.
        """
        return hashlib.sha256(self.turns[0].encode("utf-8")).hexdigest()

    @property
    def held_out(self) -> bool:
        """True for one document in ``HELD_OUT_SHARE``, by hash, which no training corpus has,
        whatever its length.
        """
        return int(self.key[:8], 16) % HELD_OUT_SHARE == 0

    def messages(self) -> list[dict[str, str]]:
        """Return the conversation as chat messages."""
        return [
            {"role": role, "content": text}
            for turn, answer in zip(self.turns, self.answers, strict=True)
            for role, text in (("user", turn), ("assistant", answer))
        ]


@dataclass(frozen=True)
class Town:
    """A town and its facts; no two towns have the same emblem."""

    name: str
    region: str
    river: str
    trade: str
    emblem: str
    colour: str
    month: str


@dataclass(frozen=True)
class Person:
    """A person, and the pronoun for later sentences."""

    first: str
    last: str
    she: str

    @property
    def name(self) -> str:
        """The full name."""
        return f"{self.first} {self.last}"


def pick(rng: random.Random, items: Sequence[Item]) -> Item:
    """Draw one item uniformly."""
    return items[rng.randrange(len(items))]


def word(rng: random.Random, kind: str) -> str:
    """Draw a word of this kind."""
    return pick(rng, WORDS[kind])


def _build_towns() -> tuple[Town, ...]:
    rng = random.Random(_WORLD_SEED)
    names = rng.sample(
        [head + tail for head in WORDS["town_heads"] for tail in WORDS["town_tails"]], _TOWN_COUNT
    )
    lists = {
        "region": "regions",
        "river": "rivers",
        "trade": "goods",
        "colour": "colours",
        "month": "months",
    }
    emblems = rng.sample(WORDS["animals"], _TOWN_COUNT)
    return tuple(
        Town(
            name=name, emblem=emblem, **{field: word(rng, words) for field, words in lists.items()}
        )
        for name, emblem in zip(names, emblems, strict=True)
    )


TOWNS = _build_towns()


def person(rng: random.Random, avoid: str = "") -> Person:
    """Draw a person whose first name differs from ``avoid``, so that two people in one text can be
    distinguished.
    """
    while True:
        woman = rng.random() < 0.5
        first = word(rng, "women" if woman else "men")
        if first != avoid:
            return Person(first, pick(rng, SURNAMES), "she" if woman else "he")


def article(word: str) -> str:
    """Return the word with its indefinite article."""
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def capital(text: str) -> str:
    """Return the text with its first letter in upper case, the rest unchanged."""
    return text[:1].upper() + text[1:]


def join(items: Sequence[str]) -> str:
    """Return an English enumeration: ``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
