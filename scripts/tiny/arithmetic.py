"""The task ``math_reasoning``: word problems solved step by step, with every intermediate result below one hundred."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from scripts.tiny.world import TEXTS, WORDS, Document, person, pick

_TEXTS = TEXTS["math"]


def _buy_bags(rng: random.Random, _: str) -> dict[str, Any]:
    box, place = pick(rng, WORDS["containers"]), pick(rng, _TEXTS["places"])
    have, count, each = rng.randint(2, 30), rng.randint(2, 6), rng.randint(2, 9)
    more = count * each
    return {"box": box, "place": place, "have": have, "count": count, "each": each, "more": more, "result": have + more}


def _give_away(rng: random.Random, _: str) -> dict[str, Any]:
    have, find = rng.randint(15, 60), rng.randint(2, 20)
    gift = rng.randint(2, have - 3)
    return {"have": have, "find": find, "gift": gift, "left": have - gift, "result": have - gift + find}


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
    return {"day": day, "other": other, "wage": wage, "first": first, "second": second, "one": one, "two": two,
            "total": one + two, "price": price, "result": one + two - price}  # fmt: skip


def _rows(rng: random.Random, _: str) -> dict[str, Any]:
    rows, each = rng.randint(2, 9), rng.randint(3, 9)
    total = rows * each
    broken = rng.randint(1, min(total - 1, 15))
    return {"rows": rows, "each": each, "total": total, "broken": broken, "result": total - broken}


def _price(rng: random.Random, thing: str) -> dict[str, Any]:
    fruit = pick(rng, [item for item in WORDS["fruits"] if item != thing])
    first, cost, second, price = rng.randint(2, 5), rng.randint(2, 8), rng.randint(2, 5), rng.randint(2, 8)
    one, two = first * cost, second * price
    return {"fruit": fruit, "first": first, "cost": cost, "second": second, "price": price, "one": one, "two": two,
            "result": one + two}  # fmt: skip


def _ages(rng: random.Random, _: str) -> dict[str, Any]:
    age, gap, years = rng.randint(4, 40), rng.randint(2, 15), rng.randint(2, 15)
    return {"age": age, "gap": gap, "years": years, "other": age + gap, "result": age + gap + years}


def _halves(rng: random.Random, _: str) -> dict[str, Any]:
    box = pick(rng, WORDS["containers"])
    each, count = rng.randint(2, 8), rng.randint(2, 6)
    half = each * count
    return {"box": box, "each": each, "half": half, "whole": 2 * half, "result": count}


# The name of a problem in texts.yaml -> the numbers in its sentences. The second argument is the counted thing.
PROBLEMS: dict[str, Callable[[random.Random, str], dict[str, Any]]] = {
    "buy_bags": _buy_bags,
    "give_away": _give_away,
    "compare_two": _compare_two,
    "share": _share,
    "earn": _earn,
    "rows": _rows,
    "price": _price,
    "ages": _ages,
    "halves": _halves,
}


def compose(rng: random.Random, name: str) -> tuple[str, list[str], int]:
    """Make a problem of a kind: its text, the steps of its solution, and the result."""
    who = person(rng)
    friend, thing = person(rng, avoid=who.first), pick(rng, WORDS["fruits" if rng.random() < 0.4 else "countable"])
    values = {"who": who, "friend": friend, "thing": thing, **PROBLEMS[name](rng, thing)}
    texts = _TEXTS["problems"][name]
    return texts["question"].format(**values), [step.format(**values) for step in texts["steps"]], values["result"]


def make_math(rng: random.Random) -> Document:
    """Make a word problem and its worked solution."""
    while True:
        text, steps, result = compose(rng, pick(rng, tuple(PROBLEMS)))
        if result < 100:
            break
    question = text[text.rindex("How ") :]
    answer = " ".join([*steps, f"{question} The answer is {result}."])
    return Document("math_reasoning", (pick(rng, _TEXTS["openings"]) + text,), (answer,))
