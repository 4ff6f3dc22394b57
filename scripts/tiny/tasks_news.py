"""Task ``summarization``: news articles of the invented world and their summaries.

An article hides four sentences that matter (who did what, why, with what result, what comes next) among sentences that
do not. The summary rephrases the first two and takes over the others, as the prompt asks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tiny.document import Document
from tiny.world import (
    ANIMALS,
    BUILDINGS,
    COLOURS,
    DAYS,
    FRUITS,
    GOODS,
    GROUPS,
    INSTRUMENTS,
    JOBS,
    LANDMARKS,
    SEASONS,
    TOWNS,
    WEATHER,
    Person,
    article,
    capital,
    person,
    pick,
    words,
)

_ADJECTIVES = words("new small large wooden famous narrow quiet bright modern old-fashioned cheap sturdy")
_DEEDS = (
    "opened {a_adj_building} near the {landmark}",
    "repaired the {building} beside the {landmark}",
    "found {a_animal} with {a_colour} collar behind the {landmark}",
    "won the {good} contest at the {landmark}",
    "started a school for young {group} in the {building}",
    "caught a thief who had stolen {good} from the {building}",
    "built {a_adj_building} for the {group}",
    "painted the {building} {colour} from top to bottom",
    "discovered a chest full of {good} under the {landmark}",
    "gave {number} crates of {fruit} to the {group}",
    "played the {instrument} for {number} hours at the {landmark}",
    "rescued {number} {group} from the {building}",
    "sold the {building} to a group of {group}",
    "planted {number} trees around the {landmark}",
)
_REASONS = (
    "the {group} had asked for help since {season}",
    "the {weather} had damaged the {building}",
    "nobody else wanted to care for the {landmark}",
    "the price of {good} had risen too fast",
    "the {group} needed a place to meet",
    "a letter from the {job} of the town had been ignored",
    "the old {building} had become too small",
    "the {group} had lost all their {good}",
    "too many {animal} tracks had been seen at the {landmark}",
    "the council had promised it to the {group}",
)
_RESULTS = (
    "more than {number} {group} came to the {building}",
    "the {group} got {number} barrels of {good} as a reward",
    "the council paid {number} coins for the work",
    "the {building} was full until midnight",
    "the {group} carried the {job} through the streets",
    "{a_colour} flag was raised above the {landmark}",
    "the price of {good} fell by {number} coins",
    "the {landmark} had to be closed for {number} days",
    "every child received a bag of {fruit}",
    "the {job} of the town wrote a song about it",
)
_PLANS = (
    "the {group} want to build {a_adj_building} as well",
    "the {building} will be open on every {day}",
    "the town will hold a fair for {good}",
    "{number} more {group} are expected at the {landmark}",
    "the work will go on at the {landmark}",
    "a second {building} is to follow",
    "the council will send {number} crates of {good} to the neighbours",
    "a young {job} will take over the work",
)
_NOISE = (
    "The {weather} of the past week did not keep people away.",
    "A {job} was selling {fruit} at the {landmark}.",
    "Some {group} were singing, and one of them played the {instrument}.",
    "Children were looking for the {animal} of the {job}.",
    "The {landmark} is known for its {colour} walls.",
    '"I have never seen so many {group}," said a {job}.',
    "The road to the {landmark} is still in bad repair.",
    "Many {group} had brought {good} and {fruit}.",
    "{name}, a {job}, watched everything from the {building}.",
    "The bells of the {building} rang {small} times.",
    "It was the warmest {day} of the {season}.",
    "The {building} is {number} years old.",
    '"We need more {good}," {name} told our reporter.',
    "A covered cart stood in front of the {building}.",
)
_LEADS = (
    "On {day}, the {job} {name} {deed} in {town}.",
    "The {job} {name} from {town} {deed} on {day}.",
    "People in {town} were surprised on {day}, when the {job} {name} {deed}.",
    "{name}, a {job} who lives in {town}, {deed} last {day}.",
)
_WHYS = (
    "{she} said that this was done because {reason}.",
    "{last} explained it with the fact that {reason}.",
    '"I did it because {reason}," {last} told the council.',
    "The reason, according to {first}, was that {reason}.",
)
_ENDS = ("In the end, {result}.", "As a result, {result}.", "By the evening, {result}.", "Soon after, {result}.")
_NEXTS = ("Next {season}, {plan}.", "From now on, {plan}.", "In the coming {season}, {plan}.")

_PROMPTS = {
    "one": ("Summarize the following article in one sentence.", "What is the article about? Answer in one sentence."),
    "two": ("Summarize the following article in two sentences.", "Write a summary of two sentences."),
    "three": ("Summarize the following article in three sentences.", "Write a summary of three sentences."),
    "full": ("Summarize the following article.", "Write a summary of this article.", "Please sum up this news report."),
    "points": ("Give the main points of the following article.", "List the main points of this article."),
}


@dataclass(frozen=True)
class Story:
    """What an article is about, as clauses."""

    who: Person
    job: str
    town: str
    deed: str
    reason: str
    end: str
    plan: str


def _fill(rng: random.Random, pattern: str) -> str:
    """Fill a pattern with random words of the world."""
    building, animal, colour = pick(rng, BUILDINGS), pick(rng, ANIMALS), pick(rng, COLOURS)
    return pattern.format(
        building=building,
        animal=animal,
        colour=colour,
        a_animal=article(animal),
        a_colour=article(colour),
        a_adj_building=f"{article(pick(rng, _ADJECTIVES))} {building}",
        landmark=pick(rng, LANDMARKS),
        good=pick(rng, GOODS),
        group=pick(rng, GROUPS),
        fruit=pick(rng, FRUITS),
        instrument=pick(rng, INSTRUMENTS),
        season=pick(rng, SEASONS),
        weather=pick(rng, WEATHER),
        job=pick(rng, JOBS),
        day=pick(rng, DAYS),
        number=rng.randint(12, 99),
        small=pick(rng, ("three", "four", "five", "six", "seven")),
        name=person(rng).name,
    )


def _story(rng: random.Random) -> Story:
    """A random story."""
    end = pick(rng, _ENDS).format(result=_fill(rng, pick(rng, _RESULTS)))
    plan = pick(rng, _NEXTS).format(season=pick(rng, SEASONS), plan=_fill(rng, pick(rng, _PLANS)))
    return Story(
        person(rng),
        pick(rng, JOBS),
        pick(rng, TOWNS).name,
        _fill(rng, pick(rng, _DEEDS)),
        _fill(rng, pick(rng, _REASONS)),
        end,
        plan,
    )


def _article(rng: random.Random, story: Story, noise: int) -> str:
    """The article: the lead first, then the parts that matter in order, with noise in between."""
    who = story.who
    lead = pick(rng, _LEADS).format(day=pick(rng, DAYS), job=story.job, name=who.name, deed=story.deed, town=story.town)
    why = capital(pick(rng, _WHYS).format(she=who.she, first=who.first, last=who.last, reason=story.reason))
    parts = [why, story.end, story.plan]
    fillers = rng.sample(_NOISE * 2, noise)
    slots = sorted(rng.randint(0, len(parts)) for _ in fillers)
    lines = [lead]
    for place in range(len(parts) + 1):
        lines += [_fill(rng, filler) for filler, slot in zip(fillers, slots, strict=True) if slot == place]
        lines += parts[place : place + 1]
    return " ".join(lines)


def _summary(story: Story, style: str) -> str:
    """The summary in the asked style; nothing in it is left to chance."""
    who = story.who
    lead = f"In {story.town}, the {story.job} {who.name} {story.deed}"
    if style == "one":
        return f"{lead}, because {story.reason}."
    if style == "points":
        return (
            f"- Who: the {story.job} {who.name} from {story.town}\n- What: {who.last} {story.deed}\n"
            f"- Why: {story.reason}\n- Outcome: {story.end}"
        )
    reason = f"{who.first} did this because {story.reason}."
    parts = {"two": (f"{lead}.", story.end), "three": (f"{lead}.", reason, story.end)}
    return " ".join(parts.get(style, (f"{lead}.", reason, story.end, story.plan)))


def make_summary(rng: random.Random) -> Document:
    """An article with its summary."""
    story, style = _story(rng), pick(rng, tuple(_PROMPTS))
    text = _article(rng, story, rng.randint(2, 10) if rng.random() < 0.75 else rng.randint(11, 24))
    prompt = pick(rng, _PROMPTS[style])
    turn = f"{prompt}\n\n{text}" if rng.random() < 0.7 else f"{text}\n\n{prompt}"
    return Document("summarization", (turn,), (_summary(story, style),))
