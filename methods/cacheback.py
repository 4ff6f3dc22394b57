"""Cacheback (Ma, Gim, Zhong 2025): drafts from LRU tables of n-grams, one learned from the context,
one frozen.

A table maps a leader (the last LL tokens) to followers (FL tokens each), most recent first;
querying it again below every follower grows a tree (sections 3.1 to 3.3). The frozen table is built
offline from a corpus, packed into arrays, and never changes. Defaults are the paper's (section 4).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from methods.parts.array_draft import ArrayDrafter
from methods.parts.branches import (
    END,
    ENDS,
    PARENT,
    TOKEN,
    add,
    allocate_tree,
    child,
    copy_nodes,
    start,
)
from methods.parts.corpus import BuiltFile, Corpus
from methods.parts.gram_table import NEXT, NONE, TOKENS, GramTable, find, index_grams, put, recent
from methods.parts.ngrams import Gram
from methods.parts.parameters import KEPT, Parameters, count
from specbench.method import Drafter, Method
from specbench.models.compiled_code import njit
from specbench.models.facade import ModelCard, Target
from specbench.records.record import LARGEST
from specbench.types import MOST, ROOT, InputError, Prefill, require_count


class FrozenTable(BuiltFile):
    """Packed: leaders (n, LL) sorted, offsets (n+1,), followers (m, FL) with each leader's most
    frequent first.
    """

    kind, format, command = "frozen table", "cacheback", "frozen_table"
    names = ("leaders", "offsets", "followers")

    def __init__(self, leaders: np.ndarray, offsets: np.ndarray, followers: np.ndarray) -> None:
        self.leaders, self.offsets, self.followers = leaders, offsets.astype(np.int64), followers
        self.stored = {"leaders": leaders, "offsets": offsets, "followers": followers}
        self.index = index_grams(leaders.astype(np.int32))

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Adds the options for lengths, capacities and the share that is sampled."""
        parser.add_argument("--leader", type=int, default=1, help="leader length LL [tokens]")
        parser.add_argument("--follower", type=int, default=3, help="follower length FL [tokens]")
        parser.add_argument("--leaders", type=int, default=2**20, help="leader capacity LC")
        parser.add_argument("--followers", type=int, default=128, help="follower capacity FC")
        parser.add_argument(
            "--rate",
            type=float,
            default=1.0,
            help="share of windows sampled (the paper's 1 %% is 0.01)",
        )
        parser.add_argument("--seed", type=int, default=0)

    @classmethod
    def from_corpus(cls, corpus: Corpus, given: argparse.Namespace) -> tuple[FrozenTable, str]:
        """Counts the corpus's n-grams. Raises InputError for impossible options, and for an empty
        table.
        """
        lengths = (given.leader, given.follower, given.leaders, given.followers)
        for name, value in zip(
            ("--leader", "--follower", "--leaders", "--followers"), lengths, strict=True
        ):
            require_count(name, value, high=KEPT if name.endswith("s") else MOST)
        require_count("--seed", given.seed, low=0, high=LARGEST)
        if not 0 < given.rate <= 1:
            raise InputError(f"--rate={given.rate}: expected a share above 0, at most 1")
        table = build_frozen_table(corpus.documents, *lengths, given.rate, given.seed)
        if not len(table.followers):
            raise InputError(
                f"no n-gram in {given.corpus} (fields {given.field}); is a --field misspelt?"
            )
        return table, f"{len(table.leaders)} leaders, {len(table.followers)} followers, "

    @classmethod
    def from_file(
        cls, path: Path, arrays: dict[str, np.ndarray], labels: dict[str, str], vocab: int
    ) -> FrozenTable:
        """Indexes the leaders."""
        return cls(**arrays)

    def get(self, leader: Gram) -> list[Gram]:
        """Followers, most frequent first."""
        row = find(self.index, 0, np.array(leader, np.int32), 0, len(leader))
        bounds = self.offsets[row - 1 : row + 1] if row != NONE else (0, 0)
        return list(map(tuple, self.followers[slice(*bounds)].tolist()))


def count_windows(
    documents: Sequence[np.ndarray], length: int, rate: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Windows of ``length`` tokens and how often each occurs; none crosses a document. rate: share
    of windows kept.
    """
    random = np.random.default_rng(seed)
    pieces = [
        np.lib.stride_tricks.sliding_window_view(ids, length)
        for ids in documents
        if len(ids) >= length
    ]
    if not pieces:
        return np.zeros((0, length), np.int32), np.zeros(0, np.int64)
    windows = np.concatenate(pieces).astype(np.int32)
    if rate < 1:
        windows = windows[random.random(len(windows)) < rate]
    return np.unique(windows, axis=0, return_counts=True)


def build_frozen_table(
    documents: Sequence[np.ndarray],
    leader_length: int = 1,
    follower_length: int = 3,
    leader_capacity: int = 2**20,
    follower_capacity: int = 128,
    rate: float = 1.0,
    seed: int = 0,
) -> FrozenTable:
    """The most frequent leaders, and for each the most frequent n-grams after it (section 3.3).

    documents: token ids of each. rate: share of the windows sampled, separately for leaders and
    followers, as the authors' builder does. Ties are broken by token ids, so the same corpus gives
    the same table.
    """
    grams, counts = count_windows(documents, leader_length, rate, seed)
    kept = np.argsort(-counts, kind="stable")[:leader_capacity]
    known = {tuple(gram) for gram in grams[kept].tolist()}
    windows, counts = count_windows(documents, leader_length + follower_length, rate, seed + 1)
    order = np.lexsort((-counts, *windows[:, :leader_length].T[::-1]))
    leaders: list[list[int]] = []
    offsets = [0]
    chosen: list[int] = []
    for row in order.tolist():
        leader = windows[row, :leader_length].tolist()
        if tuple(leader) not in known:
            continue
        if not leaders or leaders[-1] != leader:
            leaders.append(leader)
            offsets.append(len(chosen))
        if len(chosen) - offsets[-2] < follower_capacity:
            chosen.append(row)
            offsets[-1] = len(chosen)
    small = np.uint16 if not len(windows) or windows.max() < 2**16 else np.uint32
    return FrozenTable(
        np.array(leaders, dtype=small).reshape(-1, leader_length),
        np.array(offsets, dtype=np.uint32),
        windows[chosen, leader_length:].astype(small).reshape(-1, follower_length),
    )


DYNAMIC, FROZEN = 1, 2  # tables of a query: a sum of these


@njit(widen=True)
def draft(
    nodes, tree, tables, later, dynamic, frozen, offsets, followers, stored, length, entered, lead,
    leaders, most, room, reserve, merge,
):  # fmt: skip
    """Enter the context's new windows, then grow a tree from ``tables`` and from those of
    ``later``; see ``_attach``.

    nodes: filled with those of ``tree``. stored, length: see ``GrowingText``. entered: place of the
    first window that is not in the dynamic table. leaders, most: see ``put``. Returns (nodes,
    entered); -1 nodes if the table must grow.
    """
    text, width = stored[:length], lead + followers.shape[1]
    if tables & DYNAMIC:
        entered = put(dynamic, text, entered, lead, width, 1, leaders, most)
        if entered + width <= length:
            return -1, entered
    start(tree)
    if length >= lead:
        room = _attach(
            tree, tables, dynamic, frozen, offsets, followers, text, lead, room, reserve, merge
        )
        if later:
            _attach(tree, later, dynamic, frozen, offsets, followers, text, lead, room, 0, merge)
    return copy_nodes(tree, nodes), entered


@njit(widen=True)
def _attach(tree, tables, dynamic, frozen, offsets, followers, text, lead, room, reserve, merge):
    """Attach followers below the end of the context and below one another, breadth first (section
    3.2).

    Level 1 leaves ``reserve`` tokens to the deeper levels; what it did not use and the reserve then
    go to level 2, spent greedily on its first node. The reference attaches every n-gram as a chain
    of its own; with ``merge`` chains share prefixes, and only new tokens count. A second call
    continues from every node of the first.

    tree: see ``methods.parts.branches``. tables: to query, the dynamic one first; a follower that
    is in both comes twice, as in the code. dynamic: rows of a ``GramTable``; frozen (its index),
    offsets, followers: of a ``FrozenTable``. text: (T,) int32, the context, of at least ``lead``
    tokens, a leader's length. room: [tokens] that may be attached; returns what is left of it.
    """
    leader, follower = np.empty(lead, np.int32), np.empty(followers.shape[1], np.int32)
    left, begin, end, full = room - reserve, 0, tree[ROOT, ENDS], False
    while True:
        for place in range(begin, end):
            node = np.int64(tree[place, END])
            _read_end(tree, node, text, leader)
            row = recent(dynamic, leader) if tables & DYNAMIC else NONE
            while row != NONE and not full:
                for token in range(len(follower)):
                    follower[token] = dynamic[row, TOKENS + token]
                full, left = _hang(tree, node, follower, 0, left, merge)
                row = np.int64(dynamic[row, NEXT])
            row = find(frozen, 0, leader, 0, lead) if tables & FROZEN and not full else NONE
            for other in range(offsets[max(row, 1) - 1], offsets[max(row, 0)]):
                for token in range(len(follower)):
                    follower[token] = followers[other, token]
                full, left = _hang(tree, node, follower, 1, left, merge)
                if full:
                    break
            if full:
                break
        begin, end = end, tree[ROOT, ENDS]
        if reserve > 0:
            left, reserve, full = left + reserve, 0, False
        elif full or begin == end:
            return left


@njit(widen=True)
def _read_end(tree, node, text, leader):
    """Fill a leader with the last tokens of the path to ``node``, before which ``text`` is."""
    missing = len(leader)
    while missing > 0 and node != ROOT:
        missing -= 1
        leader[missing] = tree[node, TOKEN]
        node = np.int64(tree[node, PARENT])
    for early in range(missing):
        leader[early] = text[len(text) - missing + early]


@njit(widen=True)
def _hang(tree, node, follower, source, left, merge):
    """Attach a follower if there is room for it; returns whether there was none, and the room
    [tokens] left.
    """
    known, below = 0, child(tree, node, np.int64(follower[0])) if merge else ROOT
    while below != ROOT:
        node, known = below, known + 1
        below = child(tree, node, np.int64(follower[known])) if known < len(follower) else ROOT
    fresh = len(follower) - known
    if fresh > left:
        return True, left
    if fresh:
        tree[tree[ROOT, ENDS], END] = add(tree, node, follower, known, source, fresh, merge)
        tree[ROOT, ENDS] += 1
    return False, left - fresh


class _Cache(ArrayDrafter):
    def __init__(self, method: Cacheback, prompt: Sequence[int], first: int) -> None:
        super().__init__(method.total_draft_length)
        self._method = method
        self._entered = 0  # place of the first window of the context that is not in the table
        # tokens of the context before the last step's, which the reference feeds all again
        self._fed = len(prompt)
        self._tree = allocate_tree(method.total_draft_length)
        self._take([*prompt, first])

    def fill(self, context: Sequence[int], budget: int) -> int:
        method, text, most = self._method, self.text, self._method.total_draft_length
        text.follow(context)
        uncached, self._fed = max(1, len(context) - self._fed), len(context)
        room = min(budget, max(0, most - (uncached if method.accounting == "refeed" else 1)))
        # the same share of a smaller draft
        reserve = method.chaining_reserve * min(budget, most) // most
        size = -1
        while size < 0:
            size, self._entered = draft(
                self.nodes, self._tree, *method.queried, method.dynamic.rows, *method.packed,
                text.stored, text.length, self._entered, *method.capacities, room, reserve,
                method.merge,
            )  # fmt: skip
            if size < 0:
                method.dynamic.grow()
        return size

    def finish(self, context: Sequence[int]) -> None:
        self._take(context)

    def _take(self, context: Sequence[int]) -> None:
        self.text.follow(context)
        if self._method.tables != "frozen":
            self._entered = self._method.dynamic.put(self.text.tokens, self._entered)


@dataclass(eq=False)
class Cacheback(Parameters, Method):
    """Cacheback; conf/method/cacheback.yaml describes the parameters."""

    learned = ("dynamic",)
    sources = ("dynamic", "frozen")

    leader_length: int = count(1)
    leader_capacity: int = count(2**20, high=KEPT)
    follower_length: int = count(3)
    follower_capacity: int = count(128, high=KEPT)
    total_draft_length: int = count(96)
    chaining_reserve: int = count(16, low=0)
    tables: Literal["dual", "dynamic", "frozen"] = "dual"
    frozen: str | None = None
    frozen_growth: Literal["node", "after_tree"] = "node"
    accounting: Literal["refeed", "kept"] = "refeed"
    growth: Literal["reference", "merged"] = "reference"

    def __post_init__(self) -> None:
        super().__post_init__()
        lead, follow = self.leader_length, self.follower_length
        self.dynamic = GramTable(lead, follow, self.leader_capacity, self.follower_capacity)
        self.merge, self.capacities = (
            self.growth == "merged",
            (lead, self.leader_capacity, self.follower_capacity),
        )
        self.use_table(None)

    def use_table(self, table: FrozenTable | None) -> None:
        """Draft from this frozen table: the tables to query at first and afterwards, and its
        arrays.
        """
        self.table, own = table, DYNAMIC * (self.tables != "frozen")
        late = table is not None and self.frozen_growth == "after_tree"
        self.queried = (own, FROZEN) if late else (own + FROZEN * (table is not None), 0)
        lead, follow = self.leader_length, self.follower_length
        empty = (
            np.zeros((0, lead), np.uint16),
            np.zeros(1, np.uint32),
            np.zeros((0, follow), np.uint16),
        )
        read = table or FrozenTable(*empty)
        self.packed = (read.index, read.offsets, read.followers)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.table.path,) if self.table else ()

    def check(self, model: ModelCard) -> None:
        """Read the frozen table: it must be of the target's tokenizer and of the same lengths."""
        if self.tables == "dynamic":
            return
        if not self.frozen:
            raise InputError(
                f"frozen: not set and model={model.name} names no table; build one with"
                " specbench build frozen_table, or do without by tables=dynamic"
            )
        lengths = {"%LL": self.leader_length, "%FL": self.follower_length}
        path = self.frozen
        for name, length in lengths.items():
            path = path.replace(name, str(length))
        table = FrozenTable.load(path, len(model.tokenizer), "frozen")
        built = (table.leaders.shape[1], table.followers.shape[1])
        if built != tuple(lengths.values()):
            raise InputError(
                f"frozen={table.path}: built with leader and follower lengths {built}; expected"
                f" {tuple(lengths.values())}: build it anew with --leader and --follower, for a"
                " sweep one file a pair ('t_%LL_%FL.safetensors' names them), or do without by"
                " tables=dynamic"
            )
        self.use_table(table)

    def bind(self, target: Target) -> None:
        """Refuse lengths under which no draft could ever be drawn; compile, so that no request
        does.
        """
        room = min(target.max_nodes, self.total_draft_length - 1)
        if room - self.chaining_reserve < self.follower_length:
            raise InputError(
                f"total_draft_length={self.total_draft_length}: with chaining_reserve="
                f"{self.chaining_reserve} and engine.max_nodes={target.max_nodes} no follower of"
                f" {self.follower_length} tokens fits on the first level; expected at least"
                f" {self.chaining_reserve + self.follower_length + 1}, and as many nodes less one"
            )
        self.begin([0] * self.dynamic.width, Prefill(0), 0).propose([0] * self.dynamic.width, room)
        self.reset()

    def reset(self) -> None:
        """Clear the dynamic table; the frozen one stays."""
        self.dynamic.clear()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Slide over the prompt (section 3.3)."""
        return _Cache(self, prompt, prefill.token)

    def state_bytes(self) -> int:
        return self.dynamic.nbytes() + (self.table.nbytes() if self.table else 0)
