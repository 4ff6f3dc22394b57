"""Whether two servers draw the first tokens of their answers from one distribution, at a temperature above 0.

A permutation test: if they do, every split of the pooled answers behind a text into two halves is as likely as the one
seen. So of equal servers at most a share of ``LEVEL`` is called different, whatever the distribution is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from methods.server.identity import Beginning

DRAWS = 64  # answers of each server behind each text
TOKENS = 3  # of an answer; drafts begin with the second
LEVEL = 1e-3  # a smaller p is a difference
SPLITS = 1999

Drawn = Sequence[Sequence[Beginning]]  # of each text, the answers
Answers = Sequence[Sequence[Sequence[Any]]]  # of each text, of each draw, the tokens


def compare_draws(ours: Answers, theirs: Answers, seed: int = 0, splits: int = SPLITS) -> float:
    """P of the sum, over texts and places in the answer, of the two-sample chi-square of the tokens drawn there.

    Answers are split whole, since their tokens depend on each other. ours, theirs: of the same texts. splits: tried.
    """
    rng, total = np.random.default_rng(seed), np.zeros(1 + splits)
    for first, second in zip(ours, theirs, strict=True):
        drawn = [*first, *second]
        seen = np.arange(len(drawn)) < len(first)
        halves = np.vstack([seen, rng.permuted(np.tile(seen, (splits, 1)), axis=1)]).astype(np.float32)
        for place in range(max(map(len, drawn))):
            there = [str(answer[place]) if place < len(answer) else "" for answer in drawn]
            names, codes = np.unique(there, return_inverse=True)
            tokens = np.eye(len(names), dtype=np.float32)[codes]
            expected = tokens.sum(0) * len(first) / len(drawn)
            total += ((halves @ tokens - expected) ** 2 / expected).sum(1)
    return float((total >= total[0] - 1e-9).mean())


def show_alike(ours: Drawn, theirs: Drawn) -> tuple[Answers, Answers]:
    """Ids where all answers have them, else each text as one token."""
    told = all(answer.ids for there in (*ours, *theirs) for answer in there)

    def show(own: Drawn) -> Answers:
        return [[each.ids if told else [each.text.strip()] for each in there] for there in own]

    return show(ours), show(theirs)
