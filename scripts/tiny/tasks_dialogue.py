"""Task ``multi-turn``: dialogues of two turns, the second of which builds on the first.

Letters that get changed, stories that get retold, lists that get sorted into groups and extended, and introductions
that get questioned: each follow-up can only be answered with the first turn at hand.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tiny.document import Document
from tiny.world import (
    ANIMALS,
    CLOTHES,
    COLOURS,
    DAYS,
    FRUITS,
    GROUPS,
    INSTRUMENTS,
    JOBS,
    LANDMARKS,
    SEASONS,
    TOOLS,
    Person,
    article,
    capital,
    join,
    person,
    pick,
    words,
)

_EVENTS = {
    "picnic": "We will bring cold drinks and a large blanket.",
    "concert": "The music starts on time and ends late.",
    "wedding": "There will be dancing until midnight.",
    "dinner": "We will cook soup, fish and a sweet cake.",
    "boat trip": "Please wear warm clothes, since it is windy on the water.",
    "birthday party": "Please keep it a secret.",
    "chess evening": "Please bring your own board if you have one.",
    "walk in the woods": "Good shoes are all you need.",
    "garden feast": "If it rains, we will sit in the barn.",
    "reading night": "Please choose a story that you would like to read aloud.",
}
_TONES = {
    "friendly": ("Dear {to},", "I hope you are well.", "I would be so glad if you came.", "Warm wishes,"),
    "formal": (
        "Dear {to} {last},",
        "I am writing to you about an invitation.",
        "I would be grateful for a reply in due time.",
        "Yours sincerely,",
    ),
    "short": ("Hi {to},", "just a quick note.", "Let me know if you can come.", "Bye,"),
    "funny": (
        "Ahoy {to},",
        "put down your slippers and listen.",
        "If you do not come, I will eat your share.",
        "Your old pirate,",
    ),
}
_FINDS = {
    "lamp": ("a light that would show them every way home", "Who shares a light will not lose the way"),
    "key": ("a door in the hill that nobody had ever opened", "Patience opens every door"),
    "map": ("an island with nothing but their own footprints", "The way matters more than the treasure"),
    "mirror": ("their own faces, and they began to laugh", "Laugh about yourself first"),
    "bell": ("a sound so clear that all the others came running", "A true voice is heard far away"),
    "coin": ("a trader who gave them bread for it", "A small gift can feed many"),
    "letter": ("a friend whom both of them had forgotten", "Old friends are worth a long journey"),
    "seed": ("a tree in whose shade they grew old", "Great things begin small"),
    "boat": ("the far side of the lake and a new home", "Only those who leave the shore will arrive"),
    "drum": ("a feast to which even their enemies came", "Music makes peace faster than words"),
}
_FEELINGS = words("proud lazy clever lonely hungry curious gentle stubborn cheerful careful")
_GROUPS = {"animals": ANIMALS[:40], "tools": TOOLS, "clothes": CLOTHES, "fruits": FRUITS, "instruments": INSTRUMENTS}
_PETS = words("cats dogs birds goats ducks rabbits hens sheep")

Dialogue = tuple[tuple[str, str], tuple[str, str]]


def _letter(to: str, last: str, tone: str, event: str, day: str, hour: int, place: str, sender: str) -> str:
    """A letter of invitation in one of the tones."""
    hello, opening, please, bye = (part.format(to=to, last=last) for part in _TONES[tone])
    return (
        f"{hello}\n{opening} We are planning a {event} at the {place} on {day} at {hour} o'clock. {_EVENTS[event]} "
        f"{please}\n{bye}\n{sender}"
    )


def _letters(rng: random.Random) -> Dialogue:
    """A letter, then the same letter with one thing changed."""
    friend = person(rng)
    sender = person(rng, avoid=friend.first)
    tone, event = pick(rng, tuple(_TONES)), pick(rng, tuple(_EVENTS))
    day, place, hour = pick(rng, DAYS), pick(rng, LANDMARKS), rng.randint(1, 9)
    known: dict[str, Any] = {
        "to": friend.first,
        "last": friend.last,
        "tone": tone,
        "event": event,
        "day": day,
        "hour": hour,
        "place": place,
        "sender": sender.first,
    }
    first = (
        f"Write a {tone} letter from {sender.first} to {friend.name}. It is an invitation to a {event} at the "
        f"{place} on {day} at {hour} o'clock."
    )
    new_day = pick(rng, [other for other in DAYS if other != day])
    new_place = pick(rng, [other for other in LANDMARKS if other != place])
    new_tone = pick(rng, [other for other in _TONES if other != tone])
    new_hour = hour % 9 + 1
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"day": new_day}, f"Please move the {event} to {new_day} and write the letter again."),
        ({"place": new_place}, f"The place has changed to the {new_place}. Can you rewrite the letter?"),
        ({"tone": new_tone}, f"Now make the letter {new_tone}."),
        ({"hour": new_hour, "day": new_day}, f"It starts at {new_hour} o'clock on {new_day} instead. Rewrite it."),
    )
    change, follow = pick(rng, changes)
    return (first, _letter(**known)), (follow, _letter(**{**known, **change}))


def _tale(one: str, mood: str, other: str, spirit: str, find: str, place: str) -> str:
    """A very short fable; what the object leads to is fixed by the object."""
    return (
        f"Once there was {article(mood)} {one} who lived near the {place}. One day the {one} met {article(spirit)} "
        f"{other}, and at first they did not like each other. Then they found {article(find)} in the grass. It led "
        f"them to {_FINDS[find][0]}. From that day on, the {one} and the {other} were friends."
    )


def _tales(rng: random.Random) -> Dialogue:
    """A fable, then its moral, its heroes, or the fable with another hero or object."""
    one, other, third = rng.sample(ANIMALS, 3)
    mood, spirit = rng.sample(_FEELINGS, 2)
    find, place = pick(rng, tuple(_FINDS)), pick(rng, LANDMARKS)
    first = (
        f"Tell me a short story about {article(mood)} {one} and {article(spirit)} {other}. They live near the {place} "
        f"and find {article(find)}."
    )
    tale = _tale(one, mood, other, spirit, find, place)
    new = pick(rng, [item for item in _FINDS if item != find])
    follow = pick(
        rng,
        (
            (
                "What is the moral of the story?",
                f"The moral of the story about the {one} and the {other} is this: {_FINDS[find][1]}.",
            ),
            (
                f"Tell it again with {article(third)} in place of the {one}.",
                _tale(third, mood, other, spirit, find, place),
            ),
            (
                f"What would have happened if they had found {article(new)}?",
                f"If the {one} and the {other} had found {article(new)}, it would have led them to {_FINDS[new][0]}.",
            ),
            (
                "Who are the two friends, and what do they find?",
                f"The two friends are {article(mood)} {one} and "
                f"{article(spirit)} {other}. Near the {place} they find {article(find)}.",
            ),
        ),
    )
    return (first, tale), follow


def _grouped(pairs: list[tuple[str, str]]) -> str:
    """Words listed under their groups, groups and words in the order of their first appearance."""
    groups = list(dict.fromkeys(group for group, _ in pairs))
    return "\n".join(
        f"{capital(group)}: {', '.join(word for kind, word in pairs if kind == group)}" for group in groups
    )


def _sorting(rng: random.Random) -> Dialogue:
    """Words sorted into groups, then more words, or a question about one group."""
    names = rng.sample(tuple(_GROUPS), rng.randint(2, 3))
    pool = [(name, word) for name in names for word in rng.sample(_GROUPS[name], 4)]
    rng.shuffle(pool)
    count = rng.randint(5, len(pool) - 2)
    pairs, extra = pool[:count], pool[count : count + 2]
    first = f"Sort these words into groups: {', '.join(word for _, word in pairs)}."
    answer = f"Here are the groups:\n{_grouped(pairs)}"
    group = pairs[0][0]
    members = [word for name, word in pairs if name == group]
    follow = pick(
        rng,
        (
            (
                f"Please add {extra[0][1]} and {extra[1][1]} to the groups.",
                f"Here are the groups with {extra[0][1]} and {extra[1][1]}:\n{_grouped(pairs + extra)}",
            ),
            (f"Which of the words are {group}?", f"The {group} among the words are {join(members)}."),
            (
                f"Remove the {group} from the list.",
                f"Without the {group}, these groups are left:\n"
                f"{_grouped([pair for pair in pairs if pair[0] != group]) or 'none'}",
            ),
        ),
    )
    return (first, answer), follow


def _profile(who: Person, job: str, home: str, pets: str, tune: str, season: str) -> str:
    """The short text that introduces someone."""
    return (
        f"Meet {who.name}, {article(job)} from the {home}. {who.first} shares the house with {pets}. In the evening "
        f"you can hear the {tune}, and in the {season} the door is always open."
    )


def _introduction(rng: random.Random) -> Dialogue:
    """Someone introduces themselves and asks for a short profile; the follow-up asks for a detail or a total."""
    who, job, colour = person(rng), pick(rng, JOBS), pick(rng, COLOURS)
    one, two = rng.sample(_PETS, 2)
    few, many = rng.randint(2, 9), rng.randint(2, 9)
    season, tune, place = pick(rng, SEASONS), pick(rng, INSTRUMENTS), pick(rng, LANDMARKS)
    first = (
        f"My name is {who.name}, I am {article(job)} and I live in {article(colour)} house at the {place}. I have "
        f"{few} {one} and {many} {two}, I play the {tune}, and I love the {season}. "
        "Write a short text that introduces me."
    )
    home, pets = f"{colour} house at the {place}", f"{few} {one} and {many} {two}"
    group = pick(rng, GROUPS)
    follow = pick(
        rng,
        (
            (
                "How many animals do I have in all?",
                f"You have {pets}, which makes {few} + {many} = {few + many} animals in all.",
            ),
            (
                "What do I do, and what do I play?",
                f"You are {article(job)}, and you play the {tune} in your {colour} house.",
            ),
            (
                f"Write one sentence about me for the {group}.",
                f"Dear {group}, this is {who.name}, {article(job)} with {pets} who plays the {tune}.",
            ),
            (
                f"I gave away all my {two}. Please update the text.",
                _profile(who, job, home, f"{few} {one}", tune, season),
            ),
        ),
    )
    return (first, _profile(who, job, home, pets, tune, season)), follow


_KINDS: tuple[Callable[[random.Random], Dialogue], ...] = (_letters, _tales, _sorting, _introduction)


def make_dialogue(rng: random.Random) -> Document:
    """One dialogue of two turns."""
    (first, answer), (second, reply) = pick(rng, _KINDS)(rng)
    return Document("multi-turn", (first, second), (answer, reply))
