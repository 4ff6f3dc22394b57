"""The loop that replays recorded answers through a twin, and what all twins are written with.

A twin is a function ``begin(request) -> propose``; ``propose(context, last)`` gives the root path
of every drafted node, a tuple of tokens each, where ``last`` is the number of tokens that the last
step emitted. Contexts are searched as text, one character a token, so that an occurrence is what
``str.find`` says it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

Route = tuple[int, ...]
Propose = Callable[[list[int], int], list[Route]]


@dataclass(frozen=True)
class Request:
    """One turn. prompt: its tokens. earlier: (prompt, answer) of the turns since the last reset,
    oldest first.
    """

    prompt: list[int]
    earlier: list[tuple[list[int], list[int]]]


Twin = Callable[[Request], Propose]


@dataclass
class Played:
    """The result of one turn, step by step: tokens emitted, nodes drafted, and the drafts as root
    paths.
    """

    accept: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    drafts: list[Counter[Route]] = field(default_factory=list)


@dataclass(frozen=True)
class Turn:
    """A recorded turn of the conversation ``case``."""

    case: str
    prompt: list[int]
    answer: list[int]


def replay(turns: Sequence[Turn], twin: Twin, reset: str) -> Iterator[Played]:
    """Every turn through the twin. reset: what it may remember, turn | case | never."""
    earlier: list[tuple[list[int], list[int]]] = []
    case = ""
    for turn in turns:
        if reset == "turn" or (reset == "case" and turn.case != case):
            earlier = []
        case = turn.case
        yield _one(turn, twin(Request(turn.prompt, list(earlier))))
        earlier.append((turn.prompt, turn.answer))


def _one(turn: Turn, propose: Propose) -> Played:
    out, done, last = Played(), 1, 1  # the prefill's token is there
    while done < len(turn.answer):
        paths = propose(turn.prompt + turn.answer[:done], last)
        right = [path for path in paths if path == tuple(turn.answer[done : done + len(path)])]
        last = min(1 + max(map(len, right), default=0), len(turn.answer) - done)
        done += last
        out.accept.append(last)
        out.proposed.append(len(paths))
        out.drafts.append(Counter(paths))
    return out


def prefixes(tokens: Sequence[int]) -> list[Route]:
    """The root paths of a chain's nodes."""
    return [tuple(tokens[: size + 1]) for size in range(len(tokens))]


def text_of(ids: Sequence[int]) -> str:
    """One character a token."""
    return "".join(map(chr, ids))


def ids_of(text: str) -> Route:
    """Inverse of ``text_of``."""
    return tuple(map(ord, text))


def places(text: str, part: str) -> list[int]:
    """The starts of ``part`` in ``text`` in ascending order, including overlaps."""
    found, at = list[int](), text.find(part)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + 1)
    return found
