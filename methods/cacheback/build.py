"""What ``specbench build frozen_table`` adds to the reading of a corpus."""

from __future__ import annotations

import argparse

from methods.cacheback.frozen_table import FrozenTable, build_frozen_table
from methods.parts.lookup.corpus import Corpus
from specbench.types import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Lengths, capacities and the share that is sampled."""
    parser.add_argument("--leader", type=int, default=1, help="leader length LL [tokens]")
    parser.add_argument("--follower", type=int, default=3, help="follower length FL [tokens]")
    parser.add_argument("--leaders", type=int, default=2**20, help="leader capacity LC")
    parser.add_argument("--followers", type=int, default=128, help="follower capacity FC")
    parser.add_argument("--rate", type=float, default=1.0, help="share of windows sampled (the paper's 1 %% is 0.01)")
    parser.add_argument("--seed", type=int, default=0)


def build(corpus: Corpus, given: argparse.Namespace) -> tuple[FrozenTable, str]:
    """The table, and what it holds. Raises InputError for options without sense, and where it would be empty."""
    lengths = (given.leader, given.follower, given.leaders, given.followers)
    if min(lengths) < 1 or not 0 < given.rate <= 1:
        raise InputError(f"got lengths and capacities {lengths} and rate {given.rate}; expected 1 or more, and 0 to 1")
    table = build_frozen_table(corpus.documents, *lengths, given.rate, given.seed)
    if not len(table.followers):
        raise InputError(f"no n-gram in {given.corpus} (fields {given.field}); is a --field misspelt?")
    return table, f"{len(table.leaders)} leaders, {len(table.followers)} followers, "
