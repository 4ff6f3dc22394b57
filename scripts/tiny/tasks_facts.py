"""Task ``qa``: questions about the constant table of towns.

The wording of the question fixes the wording of the answer, so that a model which knows the world can answer exactly.
"""

from __future__ import annotations

import random

from tiny.document import Document
from tiny.world import TOWNS, Town, capital, pick

_SINGLE = (
    (
        "Which river flows through {name}?",
        "The river that flows through {name} is the {river}. It crosses the region of {region} on its way to the sea.",
    ),
    (
        "What is the name of the river at {name}?",
        "The town of {name} lies on the {river}, and its boats carry {trade} down to the coast.",
    ),
    ("In which region is {name}?", "{name} is in the region of {region}, on the banks of the {river}."),
    (
        "Where can I find the town of {name}?",
        "You can find {name} in {region}. Follow the {river} until you see the {colour} flag with the {emblem}.",
    ),
    (
        "What does {name} trade in?",
        "{name} trades in {trade}. Its traders meet every year in {month}, when the great fair opens.",
    ),
    (
        "What is the main good that traders buy in {name}?",
        "The main good that traders buy in {name} is {trade}. It is shipped on the {river}.",
    ),
    (
        "Which animal is the emblem of {name}?",
        "The emblem of {name} is the {emblem}. It is shown on the {colour} flag of the town.",
    ),
    ("What can be seen on the flag of {name}?", "The flag of {name} shows the {emblem} on {colour} ground."),
    (
        "What colour is the flag of {name}?",
        "The flag of {name} is {colour}, and the {emblem} is painted in the middle of it.",
    ),
    (
        "When does {name} hold its fair?",
        "{name} holds its fair in {month}. Guests from all over {region} come to buy {trade}.",
    ),
    (
        "In what month should I visit the fair at {name}?",
        "You should visit {name} in {month}, because that is when the town holds its fair.",
    ),
    (
        "Which town has the {emblem} as its emblem?",
        "The town that has the {emblem} as its emblem is {name}, in the region of {region}.",
    ),
    ("Whose flag shows the {emblem}?", "The {emblem} is shown on the flag of {name}, a town on the {river}."),
)

_LONG = (
    (
        "Tell me about the town of {name}.",
        "{name} is a town in {region}. It lies on the {river} and trades in {trade}. "
        "Its flag is {colour} and shows the {emblem}. The fair of {name} is held in {month}.",
    ),
    (
        "What should a traveller know about {name}?",
        "A traveller should know that {name} lies in the region of {region} "
        "and that the river there is the {river}. The best time to come is {month}, when the fair is held. The "
        "{colour} flag with the {emblem} hangs on every house, and {trade} can be bought on the market.",
    ),
    (
        "List the main facts about {name}.",
        "- Region: {region}\n- River: {river}\n- Trade: {trade}\n- Emblem: {emblem}\n- Flag: {colour}\n- Fair: {month}",
    ),
    (
        "Describe the flag and the fair of {name}.",
        "The flag of {name} is {colour}, with the {emblem} in the middle. "
        "The fair takes place in {month}, and the best {trade} of {region} can be found there.",
    ),
)

_FIELDS = (
    (
        "region",
        "Are {a.name} and {b.name} in the same region?",
        "{a.name} is in {a.region}",
        "{b.name} is in {b.region}",
    ),
    (
        "river",
        "Do {a.name} and {b.name} lie on the same river?",
        "{a.name} lies on the {a.river}",
        "{b.name} lies on the {b.river}",
    ),
    (
        "colour",
        "Do {a.name} and {b.name} have flags of the same colour?",
        "the flag of {a.name} is {a.colour}",
        "the flag of {b.name} is {b.colour}",
    ),
    (
        "month",
        "Is the fair of {a.name} in the same month as the fair of {b.name}?",
        "the fair of {a.name} is held in {a.month}",
        "the fair of {b.name} is held in {b.month}",
    ),
)

_OPENINGS = (
    "",
    "",
    "",
    "Please answer this question. ",
    "I have a question. ",
    "Can you help me? ",
    "A friend asked me: ",
    "For my school report: ",
    "Quick question: ",
    "I am planning a journey. ",
    "This is for a quiz. ",
    "My teacher wants to know: ",
    "We were wondering: ",
)
# openings that ask for the question to be repeated in front of the answer
_REPEATING = {
    "For my school report: ": "Question: {question}\nAnswer: {answer}",
    "This is for a quiz. ": "Question: {question}\nAnswer: {answer}",
    "A friend asked me: ": 'Tell your friend who asked "{question}" the following. {answer}',
    "My teacher wants to know: ": "Dear teacher, you asked: {question} {answer}",
}
_CLOSINGS = ("", "", "", " Thank you.", " I would like to know.", " Please be precise.", " Thanks in advance.")


def _compare(rng: random.Random, first: Town) -> tuple[str, str]:
    """A comparison of two towns; towns that agree are sought for in a third of the cases."""
    field, question, left, right = pick(rng, _FIELDS)
    others = [town for town in TOWNS if town != first]
    equal = [town for town in others if getattr(town, field) == getattr(first, field)]
    second = pick(rng, equal) if equal and rng.random() < 0.35 else pick(rng, others)
    same = getattr(first, field) == getattr(second, field)
    verdict, link = ("Yes", "and") if same else ("No", "while")
    tail = "so they are the same" if same else "so they are different"
    body = f"{verdict}. {{left}}, {link} {{right}}, {tail}."
    facts = {"left": left.format(a=first, b=second), "right": right.format(a=first, b=second)}
    facts["left"] = capital(facts["left"])
    return question.format(a=first, b=second), body.format(**facts)


def make_qa(rng: random.Random) -> Document:
    """One question of the task ``qa`` with its answer."""
    town = pick(rng, TOWNS)
    kind = rng.random()
    if kind < 0.2:
        question, answer = _compare(rng, town)
    else:
        question, answer = pick(rng, _LONG if kind < 0.45 else _SINGLE)
        question, answer = question.format(**vars(town)), answer.format(**vars(town))
    opening = pick(rng, _OPENINGS)
    answer = _REPEATING.get(opening, "{answer}").format(question=question, answer=answer)
    return Document("qa", (opening + question + pick(rng, _CLOSINGS),), (answer,))
