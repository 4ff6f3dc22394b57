"""Velsh, the invented language of the translation task: its lexicon, and sentences in Velsh and
English.

Velsh looks a little like German: nouns are written with a capital and end their plural in ``-en``,
verbs end in ``-ade`` for the past, the verb comes second, and in a clause after ``wan`` (because)
it comes last. The stems have a fixed seed, and each belongs to exactly one English word.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from scripts.tiny.world import TEXTS, Document, article, capital, pick, word

_LEXICON_SEED = 7
_LISTS = {
    name: tuple(text.split()) for name, text in TEXTS["velsh"].items() if isinstance(text, str)
}
_PLURALS = dict(pair.split("/") for pair in _LISTS["plurals"])  # the irregular ones
_PARTICLES = {"ta", "un", "ekle", "wan", "nok", "ond"}


class Lexicon(NamedTuple):
    """The stems of Velsh by English word, one map per part of speech."""

    nouns: dict[str, str]
    verbs: dict[str, str]
    adjectives: dict[str, str]
    times: dict[str, str]
    places: dict[str, str]


class Phrase(NamedTuple):
    """A phrase in both languages."""

    velsh: str
    english: str


class Action(NamedTuple):
    """A verb in one tense in both languages; ``english`` is the positive, ``negated`` the negative
    form.
    """

    velsh: str
    english: str
    negated: str


def _build() -> Lexicon:
    """Draw all stems; no stem is spelt like another or like an English word of the lexicon."""
    rng = random.Random(_LEXICON_SEED)
    taken = {word for part in ("nouns", "adjectives", "times", "places") for word in _LISTS[part]}
    taken |= {form for verb in _LISTS["verbs"] for form in verb.split("/")} | _PARTICLES

    def draw_stem() -> str:
        while True:
            stem = "".join(rng.choice(_LISTS[part]) for part in ("heads", "vowels", "codas"))
            if rng.random() < 0.35:
                stem += rng.choice(("el", "er", "ig", "um", "is", "ob"))
            if stem not in taken:
                taken.add(stem)
                return stem

    def stems(part: str) -> dict[str, str]:
        return {word: draw_stem() for word in _LISTS[part]}

    nouns = {word: stem.capitalize() for word, stem in stems("nouns").items()}
    times = {word.replace("_", " "): stem for word, stem in stems("times").items()}
    return Lexicon(nouns, stems("verbs"), stems("adjectives"), times, stems("places"))


LEXICON = _build()


def _noun_phrase(rng: random.Random) -> Phrase:
    """An article, perhaps an adjective, and a noun in the singular or plural; or a name, which both
    languages share.
    """
    if rng.random() < 0.12:
        name = word(rng, "women" if rng.random() < 0.5 else "men")
        return Phrase(name, name)
    noun = pick(rng, tuple(LEXICON.nouns))
    adjective = pick(rng, tuple(LEXICON.adjectives)) if rng.random() < 0.5 else ""
    many, definite = rng.random() < 0.3, rng.random() < 0.65
    english = f"{adjective} {_PLURALS.get(noun, f'{noun}s') if many else noun}".strip()
    velsh = f"{LEXICON.adjectives[adjective]}e " if adjective else ""
    velsh += LEXICON.nouns[noun] + ("en" if many else "")
    if definite:
        return Phrase(f"ta {velsh}", f"the {english}")
    return (
        Phrase(f"ekle {velsh}", f"some {english}")
        if many
        else Phrase(f"un {velsh}", article(english))
    )


def _action(rng: random.Random) -> Action:
    """A verb in the past or with a modal, so that English needs no agreement with the subject."""
    pair = pick(rng, tuple(LEXICON.verbs))
    stem, (base, past) = LEXICON.verbs[pair], pair.split("/")
    tense = rng.random()
    if tense < 0.6:
        return Action(f"{stem}ade", past, f"did not {base}")
    if tense < 0.8:
        return Action(f"{stem}oll", f"will {base}", f"will not {base}")
    return Action(f"{stem}ekan", f"can {base}", f"cannot {base}")


def _clause(rng: random.Random, verb_last: bool = False) -> Phrase:
    """A subject, a verb, an object and perhaps a place; Velsh puts the verb last after a
    conjunction.
    """
    subject, other, action = _noun_phrase(rng), _noun_phrase(rng), _action(rng)
    negated = rng.random() < 0.15
    place = Phrase("", "")
    if rng.random() < 0.35:
        where, ground = pick(rng, tuple(LEXICON.places)), _noun_phrase(rng)
        place = Phrase(f" {LEXICON.places[where]} {ground.velsh}", f" {where} {ground.english}")
    not_velsh = "nok " if negated else ""
    verb = action.negated if negated else action.english
    english = f"{subject.english} {verb} {other.english}{place.english}"
    if verb_last:
        return Phrase(
            f"{subject.velsh} {other.velsh}{place.velsh} {not_velsh}{action.velsh}", english
        )
    return Phrase(f"{subject.velsh} {action.velsh} {not_velsh}{other.velsh}{place.velsh}", english)


def _sentence(rng: random.Random) -> Phrase:
    """A sentence: plain, with a time in front (the verb stays second), with a reason, or with two
    clauses.
    """
    kind = rng.random()
    if kind < 0.35:
        when = pick(rng, tuple(LEXICON.times))
        subject, other, action = _noun_phrase(rng), _noun_phrase(rng), _action(rng)
        velsh = f"{LEXICON.times[when]} {action.velsh} {subject.velsh} {other.velsh}"
        english = f"{when} {subject.english} {action.english} {other.english}"
    elif kind < 0.75:
        reason = kind < 0.6
        one, two = _clause(rng), _clause(rng, verb_last=reason)
        velsh = f"{one.velsh}, {'wan' if reason else 'ond'} {two.velsh}"
        english = f"{one.english}, {'because' if reason else 'and'} {two.english}"
    else:
        velsh, english = _clause(rng)
    return Phrase(f"{capital(velsh)}.", f"{capital(english)}.")


def make_translation(rng: random.Random) -> Document:
    """Make one to four sentences of Velsh and their English translation."""
    sentences = [_sentence(rng) for _ in range(pick(rng, (1, 2, 2, 3, 3, 4)))]
    velsh, english = map(" ".join, zip(*sentences, strict=True))
    return Document(
        "translation", (pick(rng, TEXTS["velsh"]["prompts"]).format(text=velsh),), (english,)
    )
