"""The lexicon of Velsh, the invented language of the translation task, and its English counterpart.

Velsh looks a little like German: nouns are written with a capital and end their plural in ``-en``, verbs end in
``-et`` for the present and in ``-ade`` for the past, the verb comes second, and in a clause after ``wan`` (because) it
comes last. Every Velsh stem is drawn once from a fixed seed and belongs to exactly one English word.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tiny.world import words

_NOUNS = words(
    "man woman child king queen brother sister friend neighbour guest soldier merchant thief witch poet servant "
    "stranger dog cat horse cow wolf fox bird fish bear goat pig duck owl mouse house door window roof garden wall "
    "tower bridge castle church street village city forest river lake mountain field island road table chair bed lamp "
    "candle knife bottle basket mirror clock letter book picture song story key ring crown sword shield boat wagon "
    "wheel rope hammer apple pear egg loaf cake soup cheese plum tree flower leaf stone star cloud storm coat hat shoe "
    "glove shirt secret dream name word gift map coin"
)
_IRREGULAR = dict(
    pair.split("/")
    for pair in words(
        "man/men woman/women child/children thief/thieves wolf/wolves mouse/mice fish/fish knife/knives loaf/loaves "
        "leaf/leaves city/cities story/stories fox/foxes witch/witches church/churches"
    )
)
_VERBS = words(
    "see/saw find/found hear/heard buy/bought sell/sold bring/brought carry/carried paint/painted build/built "
    "break/broke steal/stole hide/hid lose/lost love/loved fear/feared know/knew follow/followed visit/visited "
    "help/helped call/called push/pushed pull/pulled wash/washed clean/cleaned cook/cooked eat/ate catch/caught "
    "throw/threw open/opened close/closed burn/burned repair/repaired watch/watched "
    "remember/remembered forget/forgot choose/chose need/needed draw/drew describe/described"
)
_ADJECTIVES = words(
    "old young big small good bad new red green blue white black golden heavy light strong weak rich poor happy sad "
    "angry clever foolish brave quiet loud warm cold wet dry clean dirty broken beautiful ugly strange long short "
    "round sharp soft sweet bitter honest lonely tired"
)
_TIMES = words(
    "today yesterday now often always sometimes never_again soon in_the_morning in_the_evening at_night in_winter "
    "in_summer on_Sunday every_day last_year"
)
_PLACES = words("in near behind under before beside")
_HEADS = words("b br d dr f fl g gr h k kl kn l m n p pf r s schl schr sp st str t v w z zw")
_VOWELS = words("a e i o u au ei ie oe ue aa")
_CODAS = words("b ck cht f ft g k l lb ld lk ll lm ln lt m mp n nd ng nk nz r rb rg rk rm rn rst rt rz s sch st t tz x")
_LEXICON_SEED = 7


@dataclass(frozen=True)
class Lexicon:
    """Stems of Velsh by English lemma, one map per part of speech."""

    nouns: dict[str, str]
    verbs: dict[str, str]
    adjectives: dict[str, str]
    times: dict[str, str]
    places: dict[str, str]

    def pairs(self) -> list[tuple[str, str]]:
        """All (English, Velsh) pairs of the lexicon."""
        maps = (self.nouns, self.verbs, self.adjectives, self.times, self.places)
        return [pair for mapping in maps for pair in mapping.items()]


def plural(noun: str) -> str:
    """English plural of a noun of the lexicon."""
    return _IRREGULAR.get(noun, f"{noun}s")


def _stem(rng: random.Random, taken: set[str]) -> str:
    """A stem that has not been given out yet."""
    while True:
        stem = rng.choice(_HEADS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
        if rng.random() < 0.35:
            stem += rng.choice(("el", "er", "ig", "um", "is", "ob"))
        if stem not in taken:
            taken.add(stem)
            return stem


def _build() -> Lexicon:
    """Draw all stems; English words are blocked so that no word is spelt alike on both sides."""
    rng = random.Random(_LEXICON_SEED)
    english = {word for group in (_NOUNS, _ADJECTIVES, _TIMES, _PLACES) for word in group}
    taken = english | {form for verb in _VERBS for form in verb.split("/")} | {"ta", "un", "ekle", "wan", "nok", "ond"}

    def stems(english_words: tuple[str, ...]) -> dict[str, str]:
        return {word: _stem(rng, taken) for word in english_words}

    nouns = {word: stem.capitalize() for word, stem in stems(_NOUNS).items()}
    times = {word.replace("_", " "): stem for word, stem in stems(_TIMES).items()}
    return Lexicon(nouns, stems(_VERBS), stems(_ADJECTIVES), times, stems(_PLACES))


LEXICON = _build()
