"""The tasks whose documents are sentences with blanks: dialogues, facts of towns, news, and passages.

The sentences are in ``texts.yaml``. The order of the draws decides which text a seed gives.
"""

from __future__ import annotations

import random
from typing import Any

from scripts.tiny.world import (
    LANDMARKS,
    SURNAMES,
    TEXTS,
    TOWNS,
    WORDS,
    Document,
    Town,
    article,
    capital,
    join,
    person,
    pick,
)

Dialogue = tuple[tuple[str, str], tuple[str, str]]
_SORTED = ("animals", "tools", "clothes", "fruits", "instruments")  # the groups of words that are sorted


def _letter(values: dict[str, Any]) -> str:
    texts = TEXTS["dialogue"]["letters"]
    hello, opening, please, bye = (part.format(**values) for part in texts["tones"][values["tone"]])
    detail = texts["events"][values["event"]]
    text: str = texts["letter"].format(**values, hello=hello, opening=opening, please=please, bye=bye, detail=detail)
    return text


def _letters(rng: random.Random) -> Dialogue:
    """A letter of invitation, then the same letter with one thing changed."""
    texts = TEXTS["dialogue"]["letters"]
    friend = person(rng)
    sender = person(rng, avoid=friend.first)
    tone, event = pick(rng, tuple(texts["tones"])), pick(rng, tuple(texts["events"]))
    day, place, hour = pick(rng, WORDS["days"]), pick(rng, LANDMARKS), rng.randint(1, 9)
    values: dict[str, Any] = {"to": friend.first, "last": friend.last, "tone": tone, "event": event, "day": day,
                              "hour": hour, "place": place, "sender": sender.first}  # fmt: skip
    new = {
        "day": pick(rng, [other for other in WORDS["days"] if other != day]),
        "place": pick(rng, [other for other in LANDMARKS if other != place]),
        "tone": pick(rng, [other for other in texts["tones"] if other != tone]),
        "hour": hour % 9 + 1,
    }
    names, follow = pick(rng, texts["changes"])
    changed = values | {name: new[name] for name in names}
    return (texts["question"].format(**values), _letter(values)), (follow.format(**changed), _letter(changed))


def _tales(rng: random.Random) -> Dialogue:
    """A fable, then its moral, its heroes, or the fable with another hero or object."""
    texts = TEXTS["dialogue"]["tales"]
    one, other, third = rng.sample(WORDS["animals"], 3)
    mood, spirit = rng.sample(WORDS["feelings"], 2)
    find, place = pick(rng, tuple(texts["finds"])), pick(rng, LANDMARKS)
    led, moral = texts["finds"][find]
    new = pick(rng, [item for item in texts["finds"] if item != find])
    values = {"one": one, "other": other, "place": place, "led": led, "moral": moral, "a_mood": article(mood),
              "a_spirit": article(spirit), "a_find": article(find), "a_third": article(third), "a_new": article(new),
              "new_led": texts["finds"][new][0]}  # fmt: skip
    values["retold"] = texts["tale"].format(**values | {"one": third})
    question, answer = pick(rng, texts["follows"])
    first = texts["question"].format(**values), texts["tale"].format(**values)
    return first, (question.format(**values), answer.format(**values))


def _grouped(pairs: list[tuple[str, str]]) -> str:
    """Words listed under their groups, groups and words in the order of their first appearance."""
    groups = list(dict.fromkeys(group for group, _ in pairs))
    return "\n".join(
        f"{capital(group)}: {', '.join(word for kind, word in pairs if kind == group)}" for group in groups
    )


def _sorting(rng: random.Random) -> Dialogue:
    """Words sorted into groups, then more words, or a question about one group."""
    names = rng.sample(_SORTED, rng.randint(2, 3))
    pool = [(name, word) for name in names for word in rng.sample(WORDS[name][:40], 4)]
    rng.shuffle(pool)
    count = rng.randint(5, len(pool) - 2)
    pairs, extra = pool[:count], pool[count : count + 2]
    first = f"Sort these words into groups: {', '.join(word for _, word in pairs)}."
    group, added = pairs[0][0], f"{extra[0][1]} and {extra[1][1]}"
    members = [word for name, word in pairs if name == group]
    others = [pair for pair in pairs if pair[0] != group]
    follows = (
        (f"Please add {added} to the groups.", f"Here are the groups with {added}:\n{_grouped(pairs + extra)}"),
        (f"Which of the words are {group}?", f"The {group} among the words are {join(members)}."),
        (
            f"Remove the {group} from the list.",
            f"Without the {group}, these groups are left:\n{_grouped(others) or 'none'}",
        ),
    )
    return (first, f"Here are the groups:\n{_grouped(pairs)}"), pick(rng, follows)


def _introduction(rng: random.Random) -> Dialogue:
    """A person asks for a short profile; the follow-up asks for a detail or a total."""
    texts = TEXTS["dialogue"]["introduction"]
    who, job, colour = person(rng), pick(rng, WORDS["jobs"]), pick(rng, WORDS["colours"])
    one, two = rng.sample(WORDS["pets"], 2)
    few, many = rng.randint(2, 9), rng.randint(2, 9)
    season, tune, place = pick(rng, WORDS["seasons"]), pick(rng, WORDS["instruments"]), pick(rng, LANDMARKS)
    home = f"{colour} house at the {place}"
    values = {"name": who.name, "first": who.first, "a_job": article(job), "colour": colour, "two": two, "few": few,
              "many": many, "total": few + many, "season": season, "tune": tune, "home": home, "a_home": article(home),
              "pets": f"{few} {one} and {many} {two}", "group": pick(rng, WORDS["groups"])}  # fmt: skip
    values["updated"] = texts["profile"].format(**values | {"pets": f"{few} {one}"})
    question, answer = pick(rng, texts["follows"])
    first = texts["question"].format(**values), texts["profile"].format(**values)
    return first, (question.format(**values), answer.format(**values))


def make_dialogue(rng: random.Random) -> Document:
    """Make a dialogue of the task ``multi-turn``: its second turn can only be answered with the first turn at hand."""
    (first, answer), (second, reply) = pick(rng, (_letters, _tales, _sorting, _introduction))(rng)
    return Document("multi-turn", (first, second), (answer, reply))


def _compare(rng: random.Random, first: Town) -> tuple[str, str]:
    """Two towns compared; towns that agree are sought in a third of the cases."""
    field, question, left, right = pick(rng, TEXTS["qa"]["comparisons"])
    others = [town for town in TOWNS if town != first]
    equal = [town for town in others if getattr(town, field) == getattr(first, field)]
    second = pick(rng, equal) if equal and rng.random() < 0.35 else pick(rng, others)
    same = getattr(first, field) == getattr(second, field)
    verdict, link, tail = ("Yes", "and", "the same") if same else ("No", "while", "different")
    left, right = capital(left.format(a=first, b=second)), right.format(a=first, b=second)
    return question.format(a=first, b=second), f"{verdict}. {left}, {link} {right}, so they are {tail}."


def make_qa(rng: random.Random) -> Document:
    """Make a question of the task ``qa`` about the towns; the wording of the question fixes that of the answer."""
    texts, town, kind = TEXTS["qa"], pick(rng, TOWNS), rng.random()
    if kind < 0.2:
        question, answer = _compare(rng, town)
    else:
        question, answer = pick(rng, texts["long"] if kind < 0.45 else texts["single"])
        question, answer = question.format(**vars(town)), answer.format(**vars(town))
    opening = pick(rng, texts["openings"])
    answer = texts["repeating"].get(opening, "{answer}").format(question=question, answer=answer)
    return Document("qa", (opening + question + pick(rng, texts["closings"]),), (answer,))


def _fill(rng: random.Random, pattern: str) -> str:
    """Fill a pattern with random words of the world."""
    building, animal, colour = (pick(rng, WORDS[name]) for name in ("buildings", "animals", "colours"))
    values = {"building": building, "animal": animal, "colour": colour, "a_animal": article(animal),
              "a_colour": article(colour), "a_adj_building": f"{article(pick(rng, WORDS['adjectives']))} {building}",
              "landmark": pick(rng, LANDMARKS)}  # fmt: skip
    for name in ("goods", "groups", "fruits", "instruments", "seasons", "weather", "jobs", "days"):
        values[name.removesuffix("s")] = pick(rng, WORDS[name])
    values["number"] = str(rng.randint(12, 99))
    values["small"] = pick(rng, ("three", "four", "five", "six", "seven"))
    return pattern.format(**values, name=person(rng).name)


def make_summary(rng: random.Random) -> Document:
    """Make a news article and its summary, a document of the task ``summarization``.

    An article hides four sentences that matter (who did what, why, with what result, what comes next) among sentences
    that do not. The summary rephrases the first two and takes over the others, as the prompt asks.
    """
    texts = TEXTS["news"]
    end = pick(rng, texts["ends"]).format(result=_fill(rng, pick(rng, texts["results"])))
    plan = pick(rng, texts["nexts"]).format(
        season=pick(rng, WORDS["seasons"]), plan=_fill(rng, pick(rng, texts["plans"]))
    )
    who, job, town = person(rng), pick(rng, WORDS["jobs"]), pick(rng, TOWNS).name
    deed, reason = (_fill(rng, pick(rng, texts[name])) for name in ("deeds", "reasons"))
    style = pick(rng, tuple(texts["prompts"]))
    noise = rng.randint(2, 10) if rng.random() < 0.75 else rng.randint(11, 24)
    opening = pick(rng, texts["leads"])
    opening = opening.format(day=pick(rng, WORDS["days"]), job=job, name=who.name, deed=deed, town=town)
    why = capital(pick(rng, texts["whys"]).format(she=who.she, first=who.first, last=who.last, reason=reason))
    parts, lines = [why, end, plan], [opening]
    fillers = rng.sample(texts["noise"] * 2, noise)
    slots = sorted(rng.randint(0, len(parts)) for _ in fillers)
    for place in range(len(parts) + 1):
        lines += [_fill(rng, filler) for filler, slot in zip(fillers, slots, strict=True) if slot == place]
        lines += parts[place : place + 1]
    lead = f"In {town}, the {job} {who.name} {deed}"
    because = f"{who.first} did this because {reason}."
    summary = {
        "one": f"{lead}, because {reason}.",
        "two": f"{lead}. {end}",
        "three": f"{lead}. {because} {end}",
        "full": f"{lead}. {because} {end} {plan}",
        "points": f"- Who: the {job} {who.name} from {town}\n- What: {who.last} {deed}\n"
        f"- Why: {reason}\n- Outcome: {end}",
    }[style]
    text, prompt = " ".join(lines), pick(rng, texts["prompts"][style])
    turn = f"{prompt}\n\n{text}" if rng.random() < 0.7 else f"{text}\n\n{prompt}"
    return Document("summarization", (turn,), (summary,))


def _facts(rng: random.Random, name: str) -> dict[str, str]:
    """Random facts about one thing."""
    colour = pick(rng, WORDS["colours"])
    return {
        "name": name,
        "colour": colour,
        "a_colour": article(colour),
        "town": pick(rng, TOWNS).name,
        "landmark": pick(rng, LANDMARKS),
        "year": str(rng.randint(1500, 1999)),
        "job": pick(rng, WORDS["jobs"]),
        "person": person(rng).name,
        "number": str(rng.randint(12, 99)),
        "things": pick(rng, WORDS["countable"]),
        "month": pick(rng, WORDS["months"]),
        "animal": pick(rng, WORDS["animals"]),
        "good": pick(rng, WORDS["goods"]),
        "building": pick(rng, WORDS["buildings"]),
    }


def make_rag(rng: random.Random) -> Document:
    """Make three to eight numbered passages, a question about one of them, and the answer taken from it."""
    texts = TEXTS["passages"]
    count = rng.randint(3, 6) if rng.random() < 0.75 else rng.randint(7, 8)
    heads = rng.sample(SURNAMES, count)
    kinds = [pick(rng, tuple(texts["kinds"])) for _ in heads]
    facts = [_facts(rng, f"{head} {kind}") for kind, head in zip(kinds, heads, strict=True)]
    chosen = rng.randrange(count)
    passages = []
    for place, (kind, known) in enumerate(zip(kinds, facts, strict=True)):
        others = rng.sample(range(2, 6), 4)
        length = 4 if place == chosen else rng.randint(1, 4)
        lines = [texts["kinds"][kind][line] for line in (0, 1, *others[:length])]  # the first names the thing in full
        passages.append(f"[{place + 1}] {' '.join(lines).format(**known)}")
    question, answer = pick(rng, texts["questions"][kinds[chosen]])
    order, cite = pick(rng, texts["cites"])
    known, text = facts[chosen], "\n".join(passages)
    turn = f"{pick(rng, texts['intros'])} {order}\n\n{text}\n\nQuestion: {question.format(**known)}"
    reply = cite.format(answer=answer.format(**known), number=chosen + 1, town=known["town"])
    return Document("rag", (turn,), (reply,))
