"""Cacheback (Ma, Gim, Zhong 2025): drafts from LRU tables of n-grams, one learned from the context, one frozen.

A table maps a leader (the last LL tokens) to followers (FL tokens each), most recent first; querying it again below
every follower grows a tree (sections 3.1 to 3.3). The frozen table is built offline from a corpus, packed into arrays,
and never changes. Defaults are the paper's (section 4).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from methods.parts.branches import Branches
from methods.parts.built_file import BuiltFile
from methods.parts.corpus import Corpus
from methods.parts.ngrams import ContextWindows, Gram, LruTable
from methods.parts.parameters import KEPT, Parameters, count
from specbench.method import Drafter, Method
from specbench.models.facade import ModelCard, Target
from specbench.records.record import LARGEST
from specbench.types import MOST, ROOT, Draft, InputError, Prefill, Step, require_count


class FrozenTable(BuiltFile):
    """Packed: leaders (n, LL) sorted, offsets (n+1,), followers (m, FL) with each leader's most frequent first."""

    kind, format, command = "frozen table", "cacheback", "frozen_table"
    names = ("leaders", "offsets", "followers")

    def __init__(self, leaders: np.ndarray, offsets: np.ndarray, followers: np.ndarray) -> None:
        self.leaders, self.followers = leaders, followers
        self.stored = {"leaders": leaders, "offsets": offsets, "followers": followers}
        bounds = offsets.tolist()
        keys = map(tuple, leaders.tolist())
        self._bounds = dict(zip(keys, pairwise(bounds), strict=True))

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Adds the options for lengths, capacities and the share that is sampled."""
        parser.add_argument("--leader", type=int, default=1, help="leader length LL [tokens]")
        parser.add_argument("--follower", type=int, default=3, help="follower length FL [tokens]")
        parser.add_argument("--leaders", type=int, default=2**20, help="leader capacity LC")
        parser.add_argument("--followers", type=int, default=128, help="follower capacity FC")
        parser.add_argument(
            "--rate", type=float, default=1.0, help="share of windows sampled (the paper's 1 %% is 0.01)"
        )
        parser.add_argument("--seed", type=int, default=0)

    @classmethod
    def from_corpus(cls, corpus: Corpus, given: argparse.Namespace) -> tuple[FrozenTable, str]:
        """Counts the corpus's n-grams. Raises InputError for impossible options, and for an empty table."""
        lengths = (given.leader, given.follower, given.leaders, given.followers)
        for name, value in zip(("--leader", "--follower", "--leaders", "--followers"), lengths, strict=True):
            require_count(name, value, high=KEPT if name.endswith("s") else MOST)
        require_count("--seed", given.seed, low=0, high=LARGEST)
        if not 0 < given.rate <= 1:
            raise InputError(f"--rate={given.rate}: expected a share above 0, at most 1")
        table = build_frozen_table(corpus.documents, *lengths, given.rate, given.seed)
        if not len(table.followers):
            raise InputError(f"no n-gram in {given.corpus} (fields {given.field}); is a --field misspelt?")
        return table, f"{len(table.leaders)} leaders, {len(table.followers)} followers, "

    @classmethod
    def from_file(cls, path: Path, arrays: dict[str, np.ndarray], labels: dict[str, str], vocab: int) -> FrozenTable:
        """Indexes the leaders."""
        return cls(**arrays)

    def get(self, leader: Gram, most: int | None = None) -> list[Gram]:
        """Followers, most frequent first, at most ``most``; None = all."""
        start, end = self._bounds.get(leader, (0, 0))
        if most is not None:
            end = min(end, start + most)
        return list(map(tuple, self.followers[start:end].tolist())) if start < end else []


def count_windows(
    documents: Sequence[np.ndarray], length: int, rate: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Windows of ``length`` tokens and how often each occurs; none crosses a document. rate: share of windows kept."""
    random = np.random.default_rng(seed)
    pieces = [np.lib.stride_tricks.sliding_window_view(ids, length) for ids in documents if len(ids) >= length]
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

    documents: token ids of each. rate: share of the windows sampled, separately for leaders and followers, as the
    authors' builder does. Ties are broken by token ids, so the same corpus gives the same table.
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


End = tuple[int, Gram]  # a node that followers may hang from, and the LL tokens that end there
Query = Callable[[Gram, int], Iterable[tuple[int, Iterable[Gram]]]]
"""(leader, room [tokens]) -> of each table its number and the followers, best first, those beyond the room but one."""
DYNAMIC, FROZEN = 0, 1  # sources


class ChainedTree(Branches):
    """Branches that are followers, below the end of the context and of one another, breadth first (section 3.2).

    Level 1 leaves ``reserve`` tokens to the deeper levels; what it did not use and the reserve then go to level 2,
    spent greedily on its first node. The reference attaches every n-gram as a chain of its own; ``merge`` shares
    prefixes, and then only new tokens count.
    """

    def __init__(self, tail: Gram, merge: bool = False) -> None:
        """tail: the last LL tokens of the context. merge: share prefixes."""
        super().__init__(merge)
        self._lead = len(tail)
        self._ends: list[End] = [(ROOT, tail)]

    def grow(self, query: Query, room: int, reserve: int) -> int:
        """Attach followers level by level; returns the room [tokens] that is left.

        A second call continues from every node of the first: the frozen table after the dynamic one.
        """
        left = room - reserve
        frontier = list(self._ends)
        while True:
            attached, full, left = self._level(query, frontier, left)
            self._ends += attached
            frontier = attached
            if reserve > 0:
                left, reserve = left + reserve, 0
            elif full or not attached:
                return left

    # Nests deeper: the hot loop of a draft, which ends in its middle.
    def _level(self, query: Query, frontier: Sequence[End], left: int) -> tuple[list[End], bool, int]:
        """(ends attached, whether the room ran out, room left)."""
        attached: list[End] = []
        for node, tail in frontier:
            for source, followers in query(tail, left):
                for follower in followers:
                    under, fresh = self._follow(node, follower) if self.merge else (node, follower)
                    if len(fresh) > left:
                        return attached, True, left
                    if fresh:
                        end = self.add(under, fresh, source, left)
                        attached.append((end, (tail + follower)[-self._lead :]))
                        left -= len(fresh)
        return attached, False, left

    def _follow(self, node: int, follower: Gram) -> tuple[int, Gram]:
        """Returns the last node below ``node`` that spells the follower, and the tokens that no node spells yet."""
        for place, token in enumerate(follower):
            child = self._children.get((node, token))
            if child is None:
                return node, follower[place:]
            node = child
        return node, ()


class _Cache(Drafter):
    def __init__(self, method: Cacheback, prompt: Sequence[int], first: int) -> None:
        self._method = method
        self._windows: ContextWindows | None = None
        self._uncached = 1  # tokens committed in the last step: the reference feeds them all again
        if method.tables != "frozen":
            width = method.leader_length + method.follower_length
            self._windows = ContextWindows(method.dynamic, method.leader_length, width)
            self._windows.extend([*prompt, first])

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        method = self._method
        uncached = self._uncached if method.accounting == "refeed" else 1
        room = min(budget, max(0, method.total_draft_length - uncached))
        tail = tuple(context[-method.leader_length :])
        if len(tail) < method.leader_length:
            return Draft()
        tree = ChainedTree(tail, method.growth == "merged")
        left, most = room, method.total_draft_length
        reserve = method.chaining_reserve * min(budget, most) // most  # the same share of a smaller draft
        together = method.frozen_growth == "node"
        for sources in ({DYNAMIC, FROZEN},) if together else ({DYNAMIC}, {FROZEN}):
            left = tree.grow(partial(method.query, sources), left, reserve if DYNAMIC in sources else 0)
        return tree.to_draft()

    def observe(self, step: Step) -> None:
        self._uncached = len(step.emitted)
        if self._windows is not None:
            self._windows.extend(step.emitted)


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
        self.dynamic = LruTable(self.leader_capacity, self.follower_capacity)
        self.table: FrozenTable | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The frozen table's file."""
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
                f"frozen={table.path}: built with leader and follower lengths {built};"
                f" expected {tuple(lengths.values())}: build it anew with --leader and --follower, for a sweep one file"
                " a pair ('t_%LL_%FL.safetensors' names them), or do without by"
                " tables=dynamic"
            )
        self.table = table

    def bind(self, target: Target) -> None:
        """Refuse lengths under which no draft could ever be drawn."""
        room = min(target.max_nodes, self.total_draft_length - 1)
        if room - self.chaining_reserve < self.follower_length:
            raise InputError(
                f"total_draft_length={self.total_draft_length}: with chaining_reserve="
                f"{self.chaining_reserve} and engine.max_nodes={target.max_nodes} no follower of"
                f" {self.follower_length} tokens fits on the first level; expected at least"
                f" {self.chaining_reserve + self.follower_length + 1}, and as many nodes less one"
            )

    def reset(self) -> None:
        """Clear the dynamic table; the frozen one stays."""
        self.dynamic.clear()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Slide over the prompt (section 3.3)."""
        return _Cache(self, prompt, prefill.token)

    def query(self, sources: Collection[int], leader: Gram, room: int) -> Iterator[tuple[int, Iterable[Gram]]]:
        """Followers of the tables ``sources``, dynamic first; one found in both comes twice: the code's order.

        Those of the dynamic table are most recent first, those of the frozen one most frequent first, and of these one
        more than ``room`` tokens hold.
        """
        if DYNAMIC in sources and self.tables != "frozen":
            yield DYNAMIC, self.dynamic.recent(leader)
        if FROZEN in sources and self.table is not None:
            most = max(room, 0) // self.follower_length + 1 if self.growth == "reference" else None
            yield FROZEN, self.table.get(leader, most)

    def state_bytes(self) -> int:
        """Bytes of both tables."""
        return self.dynamic.nbytes() + (self.table.nbytes() if self.table else 0)
