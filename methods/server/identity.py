"""Checks that a server is still the same process, and that two servers have the same model.

Greedy first tokens show other weights. At a temperature above 0 a permutation test compares the
tokens drawn: if both servers draw from one distribution, every split of the pooled answers after a
text into two halves is as likely as the one seen. So of equal servers at most a share of ``LEVEL``
is called different, whatever the distribution is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from methods.server.connection import METRICS, Connection
from methods.server.replies import SHOWN, Models
from specbench.types import CaseError, InputError

STARTED = re.compile(r"^process_start_time_seconds(?:\{[^}]*\})?\s+(\S{1,40})", re.MULTILINE)
# By Prometheus' rules it never falls.
TOTAL = re.compile(
    r"^(\w[\w:]*_total)(?:\{[^}]*\})?\s+(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?=\s|$)", re.MULTILINE
)
VOLATILE = {"created", "permission"}  # vLLM changes them at each request
# Without digits, which converters of tokenizers split in ways of their own.
TEXTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "def add(a, b):\n    return",
    "Roses are red, violets are",
    "The opposite of hot is",
)
MOST_DIFFERENT = 1  # of the first tokens: rounding may decide one


class Beginning(NamedTuple):
    """The beginning of an answer. ids: empty where the server sends text only."""

    ids: list[int]
    text: str

    def __str__(self) -> str:
        return f"{self.text!r} {self.ids}" if self.ids else repr(self.text)


class Identity:
    """A server at the start of the run: its models, its process's start and its counters, as far as
    it reports them.

    A process that takes the place of another has a later start or lower counters, and perhaps
    another model.
    """

    def __init__(self, connection: Connection) -> None:
        """Raises CaseError where no server answers."""
        self._connection = connection
        self._changes: list[str] = []
        self._known, self._totals = self._look()

    def note(self, page: str) -> None:
        """Take the counters of a page of metrics that was read since."""
        self._totals = read_totals(page) or self._totals

    def require_same(self) -> None:
        """Raise CaseError, now and from now on, where another process has taken the server's
        place.
        """
        if not self._changes:
            known, totals = self._look()
            totals = totals or self._totals  # a page that could not be read shows nothing
            fallen = [name for name, value in self._totals.items() if totals.get(name, 0.0) < value]
            self._changes = [f"its counter {name} fell" for name in fallen[:1]]
            self._changes += [
                f"its {name} {before[:SHOWN]}, now {known[name][:SHOWN]}"
                for name, before in self._known.items()
                if before != known[name]
            ]
            self._totals = totals
        if self._changes:
            raise CaseError(
                f"{self._connection.url}: the server was started anew during the run"
                f" ({'; '.join(self._changes)}); expected the same one for all cases: begin anew"
                " with measure.fresh=true"
            )

    def _look(self) -> tuple[dict[str, str], dict[str, float]]:
        listed = self._connection.find("/v1/models", Models) or Models()
        page = self._connection.read(METRICS) or ""
        models = [
            each.model_dump(exclude=VOLATILE, exclude_unset=True) for each in listed.data or ()
        ]
        started = STARTED.search(page)
        known = {
            "models were": json.dumps(models, sort_keys=True),
            "start was": started[1] if started else "not reported",
        }
        return known, read_totals(page)


def read_totals(page: str) -> dict[str, float]:
    """Sums over the labels of every counter of a Prometheus page."""
    found: dict[str, float] = {}
    for name, value in TOTAL.findall(page):
        found[name] = found.get(name, 0.0) + float(value)
    return found


def require_tokenizer(
    connection: Connection, read_ids: Callable[[str], list[int] | None], tokenizer: Any
) -> None:
    """Raise InputError where the server reads a text as other ids than ``tokenizer``."""
    for text in TEXTS:
        ids, ours = read_ids(text), list(tokenizer(text, add_special_tokens=False).input_ids)
        if ids is not None and ids != ours:
            raise InputError(
                f"url={connection.url}: its tokenizer reads {text!r} as {str(ids)[:SHOWN]},"
                f" model.tokenizer as {ours}; expected the tokenizer of the served model"
            )


def require_same_first_tokens(
    names: Sequence[str], first: Sequence[Callable[[str], Beginning]]
) -> None:
    """Raise InputError where two servers begin their greedy answers differently.

    names: their URLs. first: text -> the token after it.
    """
    different = []
    for text in TEXTS:
        ours, theirs = (each(text) for each in first)
        by_ids = ours.ids and theirs.ids
        # one id may lose its space
        if ours.ids != theirs.ids if by_ids else ours.text.strip() != theirs.text.strip():
            different.append(f"after {text!r} {names[0]} has {ours}, {names[1]} has {theirs}")
    if len(different) > MOST_DIFFERENT:
        raise InputError(
            f"url={names[0]}: other weights than the baseline's: {len(different)} of {len(TEXTS)}"
            f" first tokens differ, as {different[0]}; expected two servers of one model"
        )


DRAWS = 64  # answers of each server after each text
TOKENS = 3  # of an answer; drafts begin with the second
LEVEL = 1e-3  # a smaller p is a difference
SPLITS = 1999

Drawn = Sequence[Sequence[Beginning]]  # of each text, the answers
Answers = Sequence[Sequence[Sequence[Any]]]  # of each text, of each draw, the tokens


def compare_draws(ours: Answers, theirs: Answers, seed: int = 0, splits: int = SPLITS) -> float:
    """P of the sum, over texts and places in the answer, of the two-sample chi-square of the tokens
    drawn there.

    Answers are split whole, since their tokens depend on each other. ours, theirs: of the same
    texts. splits: tried.
    """
    rng, total = np.random.default_rng(seed), np.zeros(1 + splits)
    for first, second in zip(ours, theirs, strict=True):
        drawn = [*first, *second]
        seen = np.arange(len(drawn)) < len(first)
        halves = np.vstack([seen, rng.permuted(np.tile(seen, (splits, 1)), axis=1)]).astype(
            np.float32
        )
        for place in range(max(map(len, drawn))):
            there = [str(answer[place]) if place < len(answer) else "" for answer in drawn]
            names, codes = np.unique(there, return_inverse=True)
            tokens = np.eye(len(names), dtype=np.float32)[codes]
            expected = tokens.sum(0) * len(first) / len(drawn)
            total += ((halves @ tokens - expected) ** 2 / expected).sum(1)
    return float((total >= total[0] - 1e-9).mean())


def show_alike(ours: Drawn, theirs: Drawn) -> tuple[Answers, Answers]:
    """Ids where all answers have them, else each text as one token."""
    by_ids = all(answer.ids for there in (*ours, *theirs) for answer in there)

    def show(own: Drawn) -> Answers:
        return [[each.ids if by_ids else [each.text.strip()] for each in there] for there in own]

    return show(ours), show(theirs)
