"""The tasks of the bundled corpus, apart from translation: a function per task makes a random
document.

The sentences are in ``texts.yaml`` and have blanks. The order of the random draws decides which
text a seed gives.
"""

from __future__ import annotations

import random
from collections.abc import Callable
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
    word,
)

Dialogue = tuple[tuple[str, str], tuple[str, str]]
# the groups of words that are sorted
_SORTED = ("animals", "tools", "clothes", "fruits", "instruments")


def _letters(rng: random.Random) -> Dialogue:
    """A letter of invitation, then the same letter with one thing changed."""
    texts = TEXTS["dialogue"]["letters"]
    friend = person(rng)
    sender = person(rng, avoid=friend.first)
    tone, event = pick(rng, tuple(texts["tones"])), pick(rng, tuple(texts["events"]))
    day, place, hour = word(rng, "days"), pick(rng, LANDMARKS), rng.randint(1, 9)
    values: dict[str, Any] = {
        "to": friend.first,
        "last": friend.last,
        "tone": tone,
        "event": event,
        "day": day,
        "hour": hour,
        "place": place,
        "sender": sender.first,
    }
    new = {
        "day": pick(rng, [other for other in WORDS["days"] if other != day]),
        "place": pick(rng, [other for other in LANDMARKS if other != place]),
        "tone": pick(rng, [other for other in texts["tones"] if other != tone]),
        "hour": hour % 9 + 1,
    }
    names, follow = pick(rng, texts["changes"])
    changed = values | {name: new[name] for name in names}

    def write(values: dict[str, Any]) -> str:
        hello, opening, please, bye = (
            part.format(**values) for part in texts["tones"][values["tone"]]
        )
        parts = {"hello": hello, "opening": opening, "please": please, "bye": bye}
        return texts["letter"].format(**values, **parts, detail=texts["events"][event])

    return (texts["question"].format(**values), write(values)), (
        follow.format(**changed),
        write(changed),
    )


def _tales(rng: random.Random) -> Dialogue:
    """A fable, then its moral, its heroes, or the fable with another hero or object."""
    texts = TEXTS["dialogue"]["tales"]
    one, other, third = rng.sample(WORDS["animals"], 3)
    mood, spirit = rng.sample(WORDS["feelings"], 2)
    find, place = pick(rng, tuple(texts["finds"])), pick(rng, LANDMARKS)
    led, moral = texts["finds"][find]
    new = pick(rng, [item for item in texts["finds"] if item != find])
    values = {
        "one": one,
        "other": other,
        "place": place,
        "led": led,
        "moral": moral,
        "a_mood": article(mood),
        "a_spirit": article(spirit),
        "a_find": article(find),
        "a_third": article(third),
        "a_new": article(new),
        "new_led": texts["finds"][new][0],
    }
    values["retold"] = texts["tale"].format(**values | {"one": third})
    question, answer = pick(rng, texts["follows"])
    first = texts["question"].format(**values), texts["tale"].format(**values)
    return first, (question.format(**values), answer.format(**values))


def _grouped(pairs: list[tuple[str, str]]) -> str:
    """Words listed under their groups, groups and words in the order of their first appearance."""
    groups = list(dict.fromkeys(group for group, _ in pairs))
    return "\n".join(
        f"{capital(group)}: {', '.join(word for kind, word in pairs if kind == group)}"
        for group in groups
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
        (
            f"Please add {added} to the groups.",
            f"Here are the groups with {added}:\n{_grouped(pairs + extra)}",
        ),
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
    who, job, colour = person(rng), word(rng, "jobs"), word(rng, "colours")
    one, two = rng.sample(WORDS["pets"], 2)
    few, many = rng.randint(2, 9), rng.randint(2, 9)
    season, tune, place = word(rng, "seasons"), word(rng, "instruments"), pick(rng, LANDMARKS)
    home = f"{colour} house at the {place}"
    values = {
        "name": who.name,
        "first": who.first,
        "a_job": article(job),
        "colour": colour,
        "two": two,
        "few": few,
        "many": many,
        "total": few + many,
        "season": season,
        "tune": tune,
        "home": home,
        "a_home": article(home),
        "pets": f"{few} {one} and {many} {two}",
        "group": word(rng, "groups"),
    }
    values["updated"] = texts["profile"].format(**values | {"pets": f"{few} {one}"})
    question, answer = pick(rng, texts["follows"])
    first = texts["question"].format(**values), texts["profile"].format(**values)
    return first, (question.format(**values), answer.format(**values))


def make_dialogue(rng: random.Random) -> Document:
    """Make a dialogue of the task ``multi-turn``: its second turn can only be answered with the
    first turn at hand.
    """
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
    return (
        question.format(a=first, b=second),
        f"{verdict}. {left}, {link} {right}, so they are {tail}.",
    )


def make_qa(rng: random.Random) -> Document:
    """Make a question of the task ``qa`` about the towns; the wording of the question fixes that of
    the answer.
    """
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
    building, animal, colour = (word(rng, name) for name in ("buildings", "animals", "colours"))
    values = {"building": building, "animal": animal, "colour": colour, "a_animal": article(animal),
              "a_colour": article(colour),
              "a_adj_building": f"{article(pick(rng, WORDS['adjectives']))} {building}",
              "landmark": pick(rng, LANDMARKS)}  # fmt: skip
    for name in ("goods", "groups", "fruits", "instruments", "seasons", "weather", "jobs", "days"):
        values[name.removesuffix("s")] = word(rng, name)
    values["number"] = str(rng.randint(12, 99))
    values["small"] = pick(rng, ("three", "four", "five", "six", "seven"))
    return pattern.format(**values, name=person(rng).name)


def make_summary(rng: random.Random) -> Document:
    """Make a news article and its summary, a document of the task ``summarization``.

    An article hides four sentences that matter (who did what, why, with what result, what comes
    next) among sentences that do not. The summary rephrases the first two and takes over the
    others, as the prompt asks.
    """
    texts = TEXTS["news"]
    end = pick(rng, texts["ends"]).format(result=_fill(rng, pick(rng, texts["results"])))
    plan = pick(rng, texts["nexts"]).format(
        season=word(rng, "seasons"), plan=_fill(rng, pick(rng, texts["plans"]))
    )
    who, job, town = person(rng), word(rng, "jobs"), pick(rng, TOWNS).name
    deed, reason = (_fill(rng, pick(rng, texts[name])) for name in ("deeds", "reasons"))
    style = pick(rng, tuple(texts["prompts"]))
    noise = rng.randint(2, 10) if rng.random() < 0.75 else rng.randint(11, 24)
    opening = pick(rng, texts["leads"])
    opening = opening.format(day=word(rng, "days"), job=job, name=who.name, deed=deed, town=town)
    why = capital(
        pick(rng, texts["whys"]).format(she=who.she, first=who.first, last=who.last, reason=reason)
    )
    parts, lines = [why, end, plan], [opening]
    fillers = rng.sample(texts["noise"] * 2, noise)
    slots = sorted(rng.randint(0, len(parts)) for _ in fillers)
    for place in range(len(parts) + 1):
        lines += [
            _fill(rng, filler) for filler, slot in zip(fillers, slots, strict=True) if slot == place
        ]
        lines += parts[place : place + 1]
    lead = f"In {town}, the {job} {who.name} {deed}"
    because = f"{who.first} did this because {reason}."
    summary = {
        "one": f"{lead}, because {reason}.",
        "two": f"{lead}. {end}",
        "three": f"{lead}. {because} {end}",
        "full": f"{lead}. {because} {end} {plan}",
        "points": (
            f"- Who: the {job} {who.name} from {town}\n- What: {who.last} {deed}\n"
            f"- Why: {reason}\n- Outcome: {end}"
        ),
    }[style]
    text, prompt = " ".join(lines), pick(rng, texts["prompts"][style])
    turn = f"{prompt}\n\n{text}" if rng.random() < 0.7 else f"{text}\n\n{prompt}"
    return Document("summarization", (turn,), (summary,))


def _facts(rng: random.Random, name: str) -> dict[str, str]:
    """Random facts about one thing."""
    colour = word(rng, "colours")
    return {
        "name": name, "colour": colour, "a_colour": article(colour), "town": pick(rng, TOWNS).name,
        "landmark": pick(rng, LANDMARKS), "year": str(rng.randint(1500, 1999)),
        "job": word(rng, "jobs"), "person": person(rng).name, "number": str(rng.randint(12, 99)),
        "things": word(rng, "countable"), "month": word(rng, "months"),
        "animal": word(rng, "animals"), "good": word(rng, "goods"),
        "building": word(rng, "buildings"),
    }  # fmt: skip


def make_rag(rng: random.Random) -> Document:
    """Make three to eight numbered passages, a question about one of them, and the answer taken
    from it.
    """
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
        # the first names the thing in full
        lines = [texts["kinds"][kind][line] for line in (0, 1, *others[:length])]
        passages.append(f"[{place + 1}] {' '.join(lines).format(**known)}")
    question, answer = pick(rng, texts["questions"][kinds[chosen]])
    order, cite = pick(rng, texts["cites"])
    known, text = facts[chosen], "\n".join(passages)
    turn = f"{pick(rng, texts['intros'])} {order}\n\n{text}\n\nQuestion: {question.format(**known)}"
    reply = cite.format(answer=answer.format(**known), number=chosen + 1, town=known["town"])
    return Document("rag", (turn,), (reply,))


def _buy_bags(rng: random.Random, _: str) -> dict[str, Any]:
    box, place = word(rng, "containers"), pick(rng, TEXTS["math"]["places"])
    have, count, each = rng.randint(2, 30), rng.randint(2, 6), rng.randint(2, 9)
    more = count * each
    return {
        "box": box,
        "place": place,
        "have": have,
        "count": count,
        "each": each,
        "more": more,
        "result": have + more,
    }


def _give_away(rng: random.Random, _: str) -> dict[str, Any]:
    have, find = rng.randint(15, 60), rng.randint(2, 20)
    gift = rng.randint(2, have - 3)
    return {
        "have": have,
        "find": find,
        "gift": gift,
        "left": have - gift,
        "result": have - gift + find,
    }


def _compare_two(rng: random.Random, _: str) -> dict[str, Any]:
    have, more = rng.randint(3, 35), rng.randint(2, 20)
    return {"have": have, "more": more, "other": have + more, "result": have + have + more}


def _share(rng: random.Random, _: str) -> dict[str, Any]:
    friends, each, lost = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 12)
    rest = friends * each
    return {"friends": friends, "lost": lost, "rest": rest, "have": rest + lost, "result": each}


def _earn(rng: random.Random, _: str) -> dict[str, Any]:
    day, other = rng.sample(WORDS["days"], 2)
    wage, first, second = rng.randint(3, 9), rng.randint(2, 5), rng.randint(2, 5)
    one, two = wage * first, wage * second
    price = rng.randint(2, one + two - 1)
    return {
        "day": day,
        "other": other,
        "wage": wage,
        "first": first,
        "second": second,
        "one": one,
        "two": two,
        "total": one + two,
        "price": price,
        "result": one + two - price,
    }


def _rows(rng: random.Random, _: str) -> dict[str, Any]:
    rows, each = rng.randint(2, 9), rng.randint(3, 9)
    total = rows * each
    broken = rng.randint(1, min(total - 1, 15))
    return {"rows": rows, "each": each, "total": total, "broken": broken, "result": total - broken}


def _price(rng: random.Random, thing: str) -> dict[str, Any]:
    fruit = pick(rng, [item for item in WORDS["fruits"] if item != thing])
    first, cost, second, price = (
        rng.randint(2, 5),
        rng.randint(2, 8),
        rng.randint(2, 5),
        rng.randint(2, 8),
    )
    one, two = first * cost, second * price
    return {
        "fruit": fruit,
        "first": first,
        "cost": cost,
        "second": second,
        "price": price,
        "one": one,
        "two": two,
        "result": one + two,
    }


def _ages(rng: random.Random, _: str) -> dict[str, Any]:
    age, gap, years = rng.randint(4, 40), rng.randint(2, 15), rng.randint(2, 15)
    return {"age": age, "gap": gap, "years": years, "other": age + gap, "result": age + gap + years}


def _halves(rng: random.Random, _: str) -> dict[str, Any]:
    box = word(rng, "containers")
    each, count = rng.randint(2, 8), rng.randint(2, 6)
    half = each * count
    return {"box": box, "each": each, "half": half, "whole": 2 * half, "result": count}


# The name of a problem in texts.yaml -> the numbers in its sentences. The second argument is the
# counted thing.
PROBLEMS: dict[str, Callable[[random.Random, str], dict[str, Any]]] = {
    "buy_bags": _buy_bags, "give_away": _give_away, "compare_two": _compare_two, "share": _share,
    "earn": _earn, "rows": _rows, "price": _price, "ages": _ages, "halves": _halves,
}  # fmt: skip


def compose_problem(rng: random.Random, name: str) -> tuple[str, list[str], int]:
    """Make a problem of a kind: its text, the steps of its solution, and the result."""
    who = person(rng)
    friend, thing = (
        person(rng, avoid=who.first),
        word(rng, "fruits" if rng.random() < 0.4 else "countable"),
    )
    values = {"who": who, "friend": friend, "thing": thing, **PROBLEMS[name](rng, thing)}
    texts = TEXTS["math"]["problems"][name]
    return (
        texts["question"].format(**values),
        [step.format(**values) for step in texts["steps"]],
        values["result"],
    )


def make_math(rng: random.Random) -> Document:
    """Make a word problem of the task ``math_reasoning`` and its solution, all of whose numbers are
    below 100.
    """
    result = 100
    while result >= 100:
        text, steps, result = compose_problem(rng, pick(rng, tuple(PROBLEMS)))
    question = text[text.rindex("How ") :]
    answer = " ".join([*steps, f"{question} The answer is {result}."])
    return Document("math_reasoning", (pick(rng, TEXTS["math"]["openings"]) + text,), (answer,))


Snippet = tuple[str, str, str]  # the name of a function, what it does, its code
_LISTS, _TEXTS = (tuple(TEXTS["code"][name].split()) for name in ("lists", "texts"))
_ITEMS = {many: many.removesuffix("s") for many in _LISTS}
_FILTERS = TEXTS["code"]["filters"]  # a description, a condition, a part of the function's name
_CHANGES = TEXTS["code"]["changes"]  # a description, an expression, a part of the name
# a description, an expression over the argument, the name
_TEXT_FUNCTIONS = TEXTS["code"]["text_functions"]


def _fill_parts(rng: random.Random, entries: Any, **values: object) -> list[str]:
    """Draw an entry, whose parts have blanks for the values."""
    return [part.format(**values) for part in pick(rng, entries)]


def _loop(name: str, many: str, start: str, test: str, update: str, result: str) -> str:
    """A function with an explicit loop; ``test`` may be empty."""
    one = _ITEMS[many]
    inner = f"        if {test}:\n            {update}\n" if test else f"        {update}\n"
    return (
        f"def {name}({many}):\n    {result} = {start}\n    for {one} in {many}:\n{inner}    return"
        f" {result}"
    )


def _count(rng: random.Random) -> Snippet:
    """Counts or adds up the items of one kind, with a loop or in one line."""
    many = pick(rng, _LISTS)
    one, n = _ITEMS[many], rng.randint(2, 50)
    kind, test, tag = _fill_parts(rng, _FILTERS, x=one, n=n)
    adds, loop = rng.random() < 0.5, rng.random() < 0.5
    name = f"{'sum' if adds else 'count'}_{tag}_{many}"
    what = f"returns the {'sum' if adds else 'number'} of all {many} that are {kind}"
    amount = one if adds else "1"
    if loop:
        result = "total" if adds else "count"
        return (
            name,
            f"{what}, using a loop",
            _loop(name, many, "0", test, f"{result} += {amount}", result),
        )
    return (
        name,
        what,
        f"def {name}({many}):\n    return sum({amount} for {one} in {many} if {test})",
    )


def _select(rng: random.Random) -> Snippet:
    """Keeps, changes, or keeps and changes the items of a list."""
    many = pick(rng, _LISTS)
    one, n, m = _ITEMS[many], rng.randint(2, 50), rng.randint(2, 20)
    kind, test, tag = _fill_parts(rng, _FILTERS, x=one, n=n)
    change, value, verb = _fill_parts(rng, _CHANGES, x=one, m=m)
    share = rng.random()
    if share < 0.3:
        value, name, what = (
            one,
            f"keep_{tag}_{many}",
            f"returns a list of all {many} that are {kind}",
        )
    elif share < 0.6:
        test, name, what = "", f"{verb}_{many}", f"returns a list of all {many}, each {change}"
    else:
        name, what = (
            f"{verb}_{tag}_{many}",
            f"returns a list of all {many} that are {kind}, each {change}",
        )
    if rng.random() < 0.5:
        return (
            name,
            f"{what}, using a loop",
            _loop(name, many, "[]", test, f"result.append({value})", "result"),
        )
    clause = f" if {test}" if test else ""
    return name, what, f"def {name}({many}):\n    return [{value} for {one} in {many}{clause}]"


def _extreme(rng: random.Random) -> Snippet:
    """Largest or smallest item, with a loop."""
    many, largest = pick(rng, _LISTS), rng.random() < 0.5
    one, word, sign = _ITEMS[many], "largest" if largest else "smallest", ">" if largest else "<"
    name = f"{word}_{one}"
    what = f"returns the {word} of the {many}"
    if rng.random() < 0.5:
        return name, what, f"def {name}({many}):\n    return {'max' if largest else 'min'}({many})"
    code = _loop(name, many, f"{many}[0]", f"{one} {sign} best", f"best = {one}", "best")
    return name, f"{what}, using a loop", code


def _any_all(rng: random.Random) -> Snippet:
    """Whether any or all items are of one kind."""
    many, every = pick(rng, _LISTS), rng.random() < 0.5
    one, n = _ITEMS[many], rng.randint(2, 50)
    kind, test, tag = _fill_parts(rng, _FILTERS, x=one, n=n)
    name = f"{'all' if every else 'any'}_{tag}"
    what = f"returns True if {'all' if every else 'any'} of the {many} are {kind}"
    if rng.random() < 0.5:
        return (
            name,
            what,
            (
                f"def {name}({many}):\n    return {'all' if every else 'any'}({test} for {one} in"
                f" {many})"
            ),
        )
    first, last = (f"not ({test})", ("False", "True")) if every else (test, ("True", "False"))
    code = (
        f"def {name}({many}):\n    for {one} in {many}:\n        if {first}:\n            return"
        f" {last[0]}\n"
    )
    return name, f"{what}, using a loop", f"{code}    return {last[1]}"


def _text(rng: random.Random) -> Snippet:
    """A function on a text, plain or with a check for the empty text."""
    text, letter, m = pick(rng, _TEXTS), pick(rng, "abcdefghijklmnoprstuvwz"), rng.randint(2, 9)
    what, value, name = _fill_parts(rng, _TEXT_FUNCTIONS, t=text, c=letter, m=m)
    kind = rng.random()
    if kind < 0.4:
        return name, what, f"def {name}({text}):\n    return {value}"
    if kind < 0.7:
        code = f"def {name}({text}):\n    if not {text}:\n        return None\n    return {value}"
        return name, f"{what}, or None if {text} is empty", code
    code = f'def {name}({text}):\n    """{what[0].upper()}{what[1:]}."""\n    return {value}'
    return name, f"{what}, with a docstring", code


def _lookup(rng: random.Random) -> Snippet:
    """Builds a dictionary from a list."""
    many = pick(rng, _LISTS)
    one, m = _ITEMS[many], rng.randint(2, 20)
    if rng.random() < 0.5:
        name, what = (
            f"tally_{many}",
            f"counts how often each {one} occurs in {many} and returns a dictionary",
        )
        code = _loop(name, many, "{}", "", f"counts[{one}] = counts.get({one}, 0) + 1", "counts")
        return name, what, code
    change, value, verb = _fill_parts(rng, _CHANGES, x=one, m=m)
    name, what = (
        f"map_{many}_to_{verb}",
        f"returns a dictionary from each {one} in {many} to the {one} {change}",
    )
    return name, what, f"def {name}({many}):\n    return {{{one}: {value} for {one} in {many}}}"


_KINDS = (_count, _select, _select, _extreme, _any_all, _text, _text, _lookup)


def make_code(rng: random.Random) -> Document:
    """Make a request of the task ``code`` for one function, and the function in a fenced block.

    The description fixes the style of the code.
    """
    name, what, code = pick(rng, _KINDS)(rng)
    request = pick(rng, TEXTS["code"]["requests"]).format(name=name, what=what)
    kind = rng.random()
    if kind < 0.4:
        return Document("code", (f"{request} Only give the code.",), (f"```python\n{code}\n```",))
    if kind < 0.7:
        answer = f"Here is the function `{name}`:\n\n```python\n{code}\n```\n\nThe function {what}."
        return Document("code", (f"{request} Explain it.",), (answer,))
    return Document("code", (request,), (f"Here is the function:\n\n```python\n{code}\n```",))
