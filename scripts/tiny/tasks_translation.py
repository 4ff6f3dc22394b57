"""Task ``translation``: sentences of Velsh put into English, word order and all."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tiny.document import Document
from tiny.lexicon import LEXICON, plural
from tiny.world import MEN, WOMEN, article, capital, pick

_PROMPTS = (
    "Translate from Velsh to English: {text}",
    "Translate Velsh to English: {text}",
    "What does this Velsh text mean in English? {text}",
    "Please put this into English: {text}",
    "Give the English translation of the following Velsh text.\n{text}",
    "{text}\nTranslate the text above into English.",
)


@dataclass(frozen=True)
class Phrase:
    """A stretch of text in both languages."""

    velsh: str
    english: str


@dataclass(frozen=True)
class Action:
    """A verb in one tense in both languages; ``english`` is the positive, ``negated`` the negative form."""

    velsh: str
    english: str
    negated: str


def _noun_phrase(rng: random.Random) -> Phrase:
    """Article, perhaps an adjective, and a noun in the singular or plural; or a name, which both languages share."""
    if rng.random() < 0.12:
        name = pick(rng, WOMEN if rng.random() < 0.5 else MEN)
        return Phrase(name, name)
    noun = pick(rng, tuple(LEXICON.nouns))
    adjective = pick(rng, tuple(LEXICON.adjectives)) if rng.random() < 0.5 else ""
    many, definite = rng.random() < 0.3, rng.random() < 0.65
    english = f"{adjective} {plural(noun) if many else noun}".strip()
    velsh = f"{LEXICON.adjectives[adjective]}e " if adjective else ""
    velsh += LEXICON.nouns[noun] + ("en" if many else "")
    if definite:
        return Phrase(f"ta {velsh}", f"the {english}")
    return Phrase(f"ekle {velsh}", f"some {english}") if many else Phrase(f"un {velsh}", article(english))


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


def _clause(rng: random.Random, verb_last: bool) -> Phrase:
    """Subject, verb, object and perhaps a place; Velsh puts the verb last after a conjunction."""
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
        return Phrase(f"{subject.velsh} {other.velsh}{place.velsh} {not_velsh}{action.velsh}", english)
    return Phrase(f"{subject.velsh} {action.velsh} {not_velsh}{other.velsh}{place.velsh}", english)


def _sentence(rng: random.Random) -> Phrase:
    """One sentence: plain, with a time in front (the verb stays second), with a reason, or with two clauses."""
    kind = rng.random()
    if kind < 0.35:
        when, subject, other, action = (
            pick(rng, tuple(LEXICON.times)),
            _noun_phrase(rng),
            _noun_phrase(rng),
            _action(rng),
        )
        velsh = f"{LEXICON.times[when]} {action.velsh} {subject.velsh} {other.velsh}"
        english = f"{when} {subject.english} {action.english} {other.english}"
    elif kind < 0.6:
        main, reason = _clause(rng, verb_last=False), _clause(rng, verb_last=True)
        velsh, english = f"{main.velsh}, wan {reason.velsh}", f"{main.english}, because {reason.english}"
    elif kind < 0.75:
        one, two = _clause(rng, verb_last=False), _clause(rng, verb_last=False)
        velsh, english = f"{one.velsh}, ond {two.velsh}", f"{one.english}, and {two.english}"
    else:
        main = _clause(rng, verb_last=False)
        velsh, english = main.velsh, main.english
    return Phrase(f"{capital(velsh)}.", f"{capital(english)}.")


def make_translation(rng: random.Random) -> Document:
    """One to four sentences of Velsh with their English translation."""
    sentences = [_sentence(rng) for _ in range(pick(rng, (1, 2, 2, 3, 3, 4)))]
    velsh = " ".join(sentence.velsh for sentence in sentences)
    english = " ".join(sentence.english for sentence in sentences)
    return Document("translation", (pick(rng, _PROMPTS).format(text=velsh),), (english,))
