"""The task ``code``: small Python functions from a description.

A function is composed of what it keeps of a list, what it does to each item and how it ends; text and dictionary
functions have tables of their own. The description fixes the style of the code.
"""

from __future__ import annotations

import random

from scripts.tiny.world import TEXTS, Document, pick

_LISTS, _TEXTS = (tuple(TEXTS["code"][name].split()) for name in ("lists", "texts"))
_ITEMS = {many: many.removesuffix("s") for many in _LISTS}
_FILTERS = TEXTS["code"]["filters"]  # a description, a condition, a part of the function's name
_CHANGES = TEXTS["code"]["changes"]  # a description, an expression, a part of the name
_TEXT_FUNCTIONS = TEXTS["code"]["text_functions"]  # a description, an expression over the argument, the name

Snippet = tuple[str, str, str]


def _loop(name: str, many: str, start: str, test: str, update: str, result: str) -> str:
    """A function with an explicit loop; ``test`` may be empty."""
    one = _ITEMS[many]
    inner = f"        if {test}:\n            {update}\n" if test else f"        {update}\n"
    return f"def {name}({many}):\n    {result} = {start}\n    for {one} in {many}:\n{inner}    return {result}"


def _count(rng: random.Random) -> Snippet:
    """Counts or adds up the items of one kind, with a loop or in one line."""
    many = pick(rng, _LISTS)
    one, n = _ITEMS[many], rng.randint(2, 50)
    kind, test, tag = (part.format(x=one, n=n) for part in pick(rng, _FILTERS))
    adds, loop = rng.random() < 0.5, rng.random() < 0.5
    name = f"{'sum' if adds else 'count'}_{tag}_{many}"
    what = f"returns the {'sum' if adds else 'number'} of all {many} that are {kind}"
    amount = one if adds else "1"
    if loop:
        result = "total" if adds else "count"
        return name, f"{what}, using a loop", _loop(name, many, "0", test, f"{result} += {amount}", result)
    return name, what, f"def {name}({many}):\n    return sum({amount} for {one} in {many} if {test})"


def _select(rng: random.Random) -> Snippet:
    """Keeps, changes, or keeps and changes the items of a list."""
    many = pick(rng, _LISTS)
    one, n, m = _ITEMS[many], rng.randint(2, 50), rng.randint(2, 20)
    kind, test, tag = (part.format(x=one, n=n) for part in pick(rng, _FILTERS))
    change, value, verb = (part.format(x=one, m=m) for part in pick(rng, _CHANGES))
    share = rng.random()
    if share < 0.3:
        value, name, what = one, f"keep_{tag}_{many}", f"returns a list of all {many} that are {kind}"
    elif share < 0.6:
        test, name, what = "", f"{verb}_{many}", f"returns a list of all {many}, each {change}"
    else:
        name, what = f"{verb}_{tag}_{many}", f"returns a list of all {many} that are {kind}, each {change}"
    if rng.random() < 0.5:
        return name, f"{what}, using a loop", _loop(name, many, "[]", test, f"result.append({value})", "result")
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
    kind, test, tag = (part.format(x=one, n=n) for part in pick(rng, _FILTERS))
    name = f"{'all' if every else 'any'}_{tag}"
    what = f"returns True if {'all' if every else 'any'} of the {many} are {kind}"
    if rng.random() < 0.5:
        return name, what, f"def {name}({many}):\n    return {'all' if every else 'any'}({test} for {one} in {many})"
    first, last = (f"not ({test})", ("False", "True")) if every else (test, ("True", "False"))
    code = (
        f"def {name}({many}):\n    for {one} in {many}:\n        if {first}:\n            return {last[0]}\n"
        f"    return {last[1]}"
    )
    return name, f"{what}, using a loop", code


def _text(rng: random.Random) -> Snippet:
    """A function on a text, plain or with a check for the empty text."""
    text, letter, m = pick(rng, _TEXTS), pick(rng, "abcdefghijklmnoprstuvwz"), rng.randint(2, 9)
    what, value, name = (part.format(t=text, c=letter, m=m) for part in pick(rng, _TEXT_FUNCTIONS))
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
        name, what = f"tally_{many}", f"counts how often each {one} occurs in {many} and returns a dictionary"
        code = _loop(name, many, "{}", "", f"counts[{one}] = counts.get({one}, 0) + 1", "counts")
        return name, what, code
    change, value, verb = (part.format(x=one, m=m) for part in pick(rng, _CHANGES))
    name, what = f"map_{many}_to_{verb}", f"returns a dictionary from each {one} in {many} to the {one} {change}"
    return name, what, f"def {name}({many}):\n    return {{{one}: {value} for {one} in {many}}}"


_KINDS = (_count, _select, _select, _extreme, _any_all, _text, _text, _lookup)


def make_code(rng: random.Random) -> Document:
    """Make a request for one function, answered by the function in a fenced block and perhaps a remark."""
    name, what, code = pick(rng, _KINDS)(rng)
    request = pick(rng, TEXTS["code"]["requests"]).format(name=name, what=what)
    kind = rng.random()
    if kind < 0.4:
        return Document("code", (f"{request} Only give the code.",), (f"```python\n{code}\n```",))
    if kind < 0.7:
        answer = f"Here is the function `{name}`:\n\n```python\n{code}\n```\n\nThe function {what}."
        return Document("code", (f"{request} Explain it.",), (answer,))
    return Document("code", (request,), (f"Here is the function:\n\n```python\n{code}\n```",))
