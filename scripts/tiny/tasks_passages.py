"""Task ``rag``: numbered passages about invented things, a question about one of them, and an extractive answer."""

from __future__ import annotations

import random

from tiny.document import Document
from tiny.world import (
    ANIMALS,
    BUILDINGS,
    COLOURS,
    COUNTABLE,
    GOODS,
    JOBS,
    LANDMARKS,
    MONTHS,
    SURNAMES,
    TOWNS,
    article,
    person,
    pick,
)

# kind of thing -> sentences about it; the first names it in full
_KINDS = {
    "Museum": (
        "The {name} stands near the {landmark} in {town}.",
        "It was founded in {year} by the {job} {person}.",
        "Its largest hall shows {number} old {things}.",
        "Visitors enter through {a_colour} door.",
        "The house is closed in {month}.",
        "A stone {animal} guards the entrance.",
    ),
    "Company": (
        "The {name} has its main office in {town}.",
        "It was founded in {year} by the {job} {person}.",
        "The firm makes {good} and sells it abroad.",
        "It employs {number} people.",
        "Its sign shows {a_colour} {animal}.",
        "New workers are hired in {month}.",
    ),
    "Bridge": (
        "The {name} joins the two halves of {town}.",
        "It was built in {year} by the {job} {person}.",
        "It is {number} metres long and made of {good}.",
        "The rails are painted {colour}.",
        "A festival on the bridge is held in {month}.",
        "A carved {animal} sits on the middle pillar.",
    ),
    "Prize": (
        "The {name} is given every year in {town}.",
        "It was first awarded in {year} to the {job} {person}.",
        "The winner receives {number} bags of {good}.",
        "The medal hangs on {a_colour} ribbon.",
        "The ceremony takes place in {month}.",
        "The medal bears the picture of the {animal}.",
    ),
    "Garden": (
        "The {name} lies behind the {building} of {town}.",
        "It was planted in {year} by the {job} {person}.",
        "There are {number} kinds of roses in it.",
        "Most of the flowers are {colour}.",
        "The roses bloom in {month}.",
        "In the pond lives a tame {animal}.",
    ),
}
# question, answer; keyed by the kind, in the order of what is asked
_QUESTIONS = {
    "Museum": (
        ("Who founded the {name}?", "The {name} was founded by the {job} {person} in {year}."),
        ("When was the {name} founded?", "It was founded in {year} by the {job} {person}."),
        ("Where is the {name}?", "The {name} stands near the {landmark} in {town}."),
        ("How many {things} does the {name} show?", "The largest hall of the {name} shows {number} old {things}."),
        ("When is the {name} closed?", "The {name} is closed in {month}."),
    ),
    "Company": (
        ("Who founded the {name}?", "The {name} was founded by the {job} {person} in {year}."),
        ("What does the {name} make?", "The {name} makes {good} and sells it abroad."),
        ("How many people work for the {name}?", "The {name} employs {number} people in {town}."),
        ("What does the sign of the {name} show?", "The sign of the {name} shows {a_colour} {animal}."),
    ),
    "Bridge": (
        ("Who built the {name}?", "The {name} was built by the {job} {person} in {year}."),
        ("How long is the {name}?", "The {name} is {number} metres long and made of {good}."),
        ("What is the {name} made of?", "It is made of {good}, and the rails are painted {colour}."),
        ("When is the festival on the {name} held?", "The festival on the {name} is held in {month}."),
    ),
    "Prize": (
        ("Who was the first winner of the {name}?", "The {name} was first awarded in {year} to the {job} {person}."),
        ("What does the winner of the {name} receive?", "The winner receives {number} bags of {good}."),
        ("In which month is the {name} given?", "The ceremony of the {name} takes place in {month}."),
        (
            "What does the medal of the {name} look like?",
            "The medal hangs on {a_colour} ribbon and bears the picture of the {animal}.",
        ),
    ),
    "Garden": (
        ("Who planted the {name}?", "The {name} was planted by the {job} {person} in {year}."),
        ("What colour are the flowers of the {name}?", "Most of the flowers in the {name} are {colour}."),
        ("When do the roses of the {name} bloom?", "In the {name}, the roses bloom in {month}."),
        ("Which animal lives in the {name}?", "In the pond of the {name} lives a tame {animal}."),
    ),
}
_INTROS = (
    "Answer the question with the help of the passages.",
    "Use the passages below to answer the question.",
    "Read the passages and answer the question.",
)
# how the answer cites its passage, fixed by the last line of the prompt
_CITES = (
    ("Say which passage you used.", "{answer} I found this in passage {number}."),
    ("Start with the number of the passage.", "Passage {number} says: {answer}"),
    ("Name the town as well.", "{answer} This is about the town of {town}, see passage {number}."),
    ("Answer in full sentences.", "According to passage {number}, this is the answer. {answer}"),
)


def _facts(rng: random.Random, kind: str, head: str) -> dict[str, str]:
    """Random facts about one thing."""
    colour = pick(rng, COLOURS)
    return {
        "name": f"{head} {kind}",
        "town": pick(rng, TOWNS).name,
        "landmark": pick(rng, LANDMARKS),
        "year": str(rng.randint(1500, 1999)),
        "job": pick(rng, JOBS),
        "person": person(rng).name,
        "number": str(rng.randint(12, 99)),
        "things": pick(rng, COUNTABLE),
        "colour": colour,
        "a_colour": article(colour),
        "month": pick(rng, MONTHS),
        "animal": pick(rng, ANIMALS),
        "good": pick(rng, GOODS),
        "building": pick(rng, BUILDINGS),
    }


def _passage(kind: str, facts: dict[str, str], others: list[int]) -> str:
    """The passage: the naming sentence, the founding sentence, then the other ones asked for."""
    lines = [_KINDS[kind][place] for place in (0, 1, *others)]
    return " ".join(lines).format(**facts)


def make_rag(rng: random.Random) -> Document:
    """Three to eight passages, a question about one of them, and the answer taken from it."""
    count = rng.randint(3, 6) if rng.random() < 0.75 else rng.randint(7, 8)
    heads = rng.sample(SURNAMES, count)
    kinds = [pick(rng, tuple(_KINDS)) for _ in heads]
    facts = [_facts(rng, kind, head) for kind, head in zip(kinds, heads, strict=True)]
    chosen = rng.randrange(count)
    passages = []
    for place, (kind, known) in enumerate(zip(kinds, facts, strict=True)):
        others = rng.sample(range(2, 6), 4)
        length = 4 if place == chosen else rng.randint(1, 4)
        passages.append(f"[{place + 1}] {_passage(kind, known, others[:length])}")
    question, answer = pick(rng, _QUESTIONS[kinds[chosen]])
    order, cite = pick(rng, _CITES)
    known = facts[chosen]
    text = "\n".join(passages)
    turn = f"{pick(rng, _INTROS)} {order}\n\n{text}\n\nQuestion: {question.format(**known)}"
    reply = cite.format(answer=answer.format(**known), number=chosen + 1, town=known["town"])
    return Document("rag", (turn,), (reply,))
