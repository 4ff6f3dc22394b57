"""From a composition error to a sentence that helps: what was got, what there is, what was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence

NOISE = re.compile(r"\n\s*(full_key|reference_type|object_type)[:=].*|\nTo append to your config use .*")
OPTION = re.compile(r"Could not (?:load|find) '([\w./]+)/([^'/]*)'")
KEY = re.compile(r"Could not override '([^']+)'")
VALUE = re.compile(r"Error merging override (\S+)\n(.+)", re.DOTALL)


def near(word: str, known: Sequence[str]) -> str:
    """``did you mean X? there are: ...`` for a word that is not among the known ones."""
    close = difflib.get_close_matches(word, known, 1)
    return (f"did you mean {close[0]}? " if close else "") + f"there are: {', '.join(known) or 'none'}"


def explain(message: str, options: Callable[[str], list[str]], keys: Callable[[str], list[str]]) -> str:
    """Rewrite the library's message where it can be said more plainly; otherwise only drop its noise.

    options: group -> its choices. keys: dotted path of a node -> the settings it has (empty if unknown).
    """
    if found := OPTION.search(message):
        group, name = found.groups()
        return f"{group}={name}: there is no {group}/{name}; {near(name, options(group))}"
    if found := KEY.search(message):
        path = found[1]
        parent, _, key = path.rpartition(".")
        if not parent and (choices := options(key)):
            return f"{key}: a group that no run has by itself; add one with a plus: +{key}={' | '.join(choices)}"
        siblings = keys(parent)
        if siblings:
            return f"{path}: no such setting; {near(key, siblings)}"
        return f"{path}: no such setting; choose the method or group that has it first (see specbench --cfg job)"
    if found := VALUE.search(NOISE.sub("", message)):
        override, reason = found.groups()
        return f"{override}: {reason.strip()}"
    return NOISE.sub("", message).strip()
