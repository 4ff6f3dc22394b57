"""Task ``math_reasoning``: word problems solved step by step, with every intermediate result below one hundred."""

from __future__ import annotations

import random
from collections.abc import Callable

from tiny.document import Document
from tiny.world import COUNTABLE, DAYS, FRUITS, Person, person, phrases, pick, words

_CONTAINERS = words("bags boxes baskets jars crates sacks")
_OPENINGS = (
    "",
    "",
    "",
    "Solve this step by step. ",
    "Here is a problem. ",
    "Please work this out. ",
    "Think step by step. ",
    "My homework says: ",
)
_PLACES = phrases("on the market|at the fair|in the shop|at the harbour|in the village|from a trader")

Problem = tuple[str, list[str], int]


def _two_people(rng: random.Random) -> tuple[Person, Person, str]:
    """Two people with different first names and something they can count."""
    first = person(rng)
    return first, person(rng, avoid=first.first), pick(rng, FRUITS if rng.random() < 0.4 else COUNTABLE)


def _buy_bags(rng: random.Random) -> Problem:
    """Start, then some containers of equal size are added."""
    who, _, thing = _two_people(rng)
    box, place = pick(rng, _CONTAINERS), pick(rng, _PLACES)
    have, count, each = rng.randint(2, 30), rng.randint(2, 6), rng.randint(2, 9)
    more = count * each
    text = (
        f"{who.first} has {have} {thing}. Then {who.she} buys {count} {box} {place}, and there are {each} {thing} in "
        f"each of the {box}. How many {thing} does {who.first} have now?"
    )
    steps = [
        f"The {count} {box} hold {count} * {each} = {more} {thing}.",
        f"Together with the {have} {thing} from before, {who.first} has {have} + {more} = {have + more} {thing}.",
    ]
    return text, steps, have + more


def _give_away(rng: random.Random) -> Problem:
    """Start, a gift to a friend, and a find."""
    who, friend, thing = _two_people(rng)
    have, find = rng.randint(15, 60), rng.randint(2, 20)
    gift = rng.randint(2, have - 3)
    left = have - gift
    text = (
        f"{who.first} owns {have} {thing} and gives {gift} of them to {friend.first}. Later {who.first} finds {find} "
        f"more {thing} at home. How many {thing} does {who.first} have in the end?"
    )
    steps = [
        f"After the gift to {friend.first}, {who.first} has {have} - {gift} = {left} {thing}.",
        f"With the {find} {thing} found at home, {who.she} has {left} + {find} = {left + find} {thing}.",
    ]
    return text, steps, left + find


def _compare_two(rng: random.Random) -> Problem:
    """One has some more than the other; the total is asked."""
    who, friend, thing = _two_people(rng)
    have, more = rng.randint(3, 35), rng.randint(2, 20)
    other = have + more
    text = (
        f"{who.first} has collected {have} {thing}. {friend.first} has collected {more} {thing} more than "
        f"{who.first}. How many {thing} have {who.first} and {friend.first} collected together?"
    )
    steps = [
        f"{friend.first} has {have} + {more} = {other} {thing}.",
        f"Together {who.first} and {friend.first} have collected {have} + {other} = {have + other} {thing}.",
    ]
    return text, steps, have + other


def _share(rng: random.Random) -> Problem:
    """A number shared equally, after some were lost."""
    who, _, thing = _two_people(rng)
    friends, each, lost = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 12)
    rest = friends * each
    have = rest + lost
    text = (
        f"{who.first} carries {have} {thing} to a party, but {lost} of the {thing} get lost on the way. "
        f"{who.first} shares the rest equally among {friends} friends. How many {thing} does each friend get?"
    )
    steps = [
        f"After the loss there are {have} - {lost} = {rest} {thing} left.",
        f"Each of the {friends} friends gets {rest} / {friends} = {each} {thing}.",
    ]
    return text, steps, each


def _earn(rng: random.Random) -> Problem:
    """Wages of two days, minus a purchase."""
    who, _, thing = _two_people(rng)
    day, other = rng.sample(DAYS, 2)
    wage, first, second = rng.randint(3, 9), rng.randint(2, 5), rng.randint(2, 5)
    one, two = wage * first, wage * second
    total = one + two
    price = rng.randint(2, total - 1)
    text = (
        f"{who.first} earns {wage} coins for every hour of work. {who.first} works {first} hours on {day} and "
        f"{second} hours on {other}. Then {who.she} buys {thing} for {price} coins. How many coins are left?"
    )
    steps = [
        f"On {day} {who.first} earns {wage} * {first} = {one} coins.",
        f"On {other} {who.she} earns {wage} * {second} = {two} coins.",
        f"Both days bring {one} + {two} = {total} coins.",
        f"After buying the {thing}, {who.first} has {total} - {price} = {total - price} coins.",
    ]
    return text, steps, total - price


def _rows(rng: random.Random) -> Problem:
    """A grid of things of which some are broken."""
    who, _, thing = _two_people(rng)
    rows, each = rng.randint(2, 9), rng.randint(3, 9)
    total = rows * each
    broken = rng.randint(1, min(total - 1, 15))
    text = (
        f"There are {rows} rows of {thing} on the table, and every row has {each} {thing}. {who.first} takes away "
        f"{broken} {thing}. How many {thing} stay on the table?"
    )
    steps = [
        f"At first there are {rows} * {each} = {total} {thing} on the table.",
        f"When {who.first} takes away {broken}, {total} - {broken} = {total - broken} {thing} stay on the table.",
    ]
    return text, steps, total - broken


def _price(rng: random.Random) -> Problem:
    """Two kinds of things at different prices, paid from a purse."""
    who, _, thing = _two_people(rng)
    fruit = pick(rng, [item for item in FRUITS if item != thing])
    first, cost, second, price = (rng.randint(2, 5), rng.randint(2, 8), rng.randint(2, 5), rng.randint(2, 8))
    one, two = first * cost, second * price
    text = (
        f"A trader sells {thing} for {cost} coins each and {fruit} for {price} coins each. {who.first} wants "
        f"{first} {thing} and {second} {fruit}. How many coins must {who.first} pay?"
    )
    steps = [
        f"The {thing} cost {first} * {cost} = {one} coins.",
        f"The {fruit} cost {second} * {price} = {two} coins.",
        f"In all {who.first} must pay {one} + {two} = {one + two} coins.",
    ]
    return text, steps, one + two


def _ages(rng: random.Random) -> Problem:
    """Ages that differ by a constant, some years on."""
    who, friend, _ = _two_people(rng)
    age, gap, years = rng.randint(4, 40), rng.randint(2, 15), rng.randint(2, 15)
    other = age + gap
    text = (
        f"{who.first} is {age} years old. {friend.first} is {gap} years older than {who.first}. How old will "
        f"{friend.first} be in {years} years?"
    )
    steps = [
        f"Today {friend.first} is {age} + {gap} = {other} years old.",
        f"In {years} years {friend.first} will be {other} + {years} = {other + years} years old.",
    ]
    return text, steps, other + years


def _halves(rng: random.Random) -> Problem:
    """Half of a stock is sold, the rest is packed."""
    who, _, thing = _two_people(rng)
    box = pick(rng, _CONTAINERS)
    each, count = rng.randint(2, 8), rng.randint(2, 6)
    half = each * count
    text = (
        f"{who.first} brings {2 * half} {thing} and sells half of them. The other half is packed into {box} with "
        f"{each} {thing} each. How many {box} does {who.first} need?"
    )
    steps = [
        f"Half of the {thing} is {2 * half} / 2 = {half}.",
        f"To pack {half} {thing}, {who.first} needs {half} / {each} = {count} {box}.",
    ]
    return text, steps, count


PROBLEMS: tuple[Callable[[random.Random], Problem], ...] = (
    _buy_bags,
    _give_away,
    _compare_two,
    _share,
    _earn,
    _rows,
    _price,
    _ages,
    _halves,
)


def make_math(rng: random.Random) -> Document:
    """One word problem with its worked solution."""
    while True:
        text, steps, result = pick(rng, PROBLEMS)(rng)
        if result < 100:
            break
    question = text[text.rindex("How ") :]
    answer = " ".join([*steps, f"{question} The answer is {result}."])
    return Document("math_reasoning", (pick(rng, _OPENINGS) + text,), (answer,))
