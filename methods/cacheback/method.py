"""Cacheback (Ma, Gim, Zhong 2025): drafts from LRU tables of n-grams, one learned from the context, one frozen.

A table maps a leader (the last LL tokens) to followers (FL tokens each), most recent first; querying it again below
every follower grows a tree (sections 3.1 to 3.3). Defaults are the paper's (section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from methods.cacheback.frozen_table import FrozenTable, Gram
from methods.parts.lookup.lru_table import ContextWindows, LruTable
from methods.parts.trees.branches import Branches
from specbench.method import Drafter, Method
from specbench.models.facade import ModelCard, Target
from specbench.models.load import locate_file
from specbench.types import ROOT, Draft, InputError, Prefill, Step, require_count

End = tuple[int, Gram]  # a node that followers may hang from, and the LL tokens that end there
Query = Callable[[Gram, int], Iterable[tuple[int, Iterable[Gram]]]]
"""(leader, room [tokens]) -> of each table its number and the followers, best first, those beyond the room but one."""
Tables = Literal["dual", "dynamic", "frozen"]
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

        A second call goes on from every node of the first: the frozen table after the dynamic one.
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
                    under, fresh = self.follow(node, follower) if self.merge else (node, follower)
                    if len(fresh) > left:
                        return attached, True, left
                    if fresh:
                        left -= len(fresh)
                        attached.append((self.attach(under, fresh, source), (tail + follower)[-self._lead :]))
        return attached, False, left


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
        if method.frozen_growth == "node":
            tree.grow(method.query, room, method.chaining_reserve)
        else:
            left = tree.grow(method.query_dynamic, room, method.chaining_reserve)
            tree.grow(method.query_frozen, left, 0)
        return tree.to_draft()

    def observe(self, step: Step) -> None:
        self._uncached = len(step.emitted)
        if self._windows is not None:
            self._windows.extend(step.emitted)


class Cacheback(Method):
    """leader_length LL, leader_capacity LC, follower_length FL, follower_capacity FC: of the tables [tokens, entries].

    total_draft_length TDL: drafted and not yet cached tokens of a forward. chaining_reserve CRT: of these, kept for the
    second level and below. tables: dual | dynamic (No Frozen) | frozen (Only Frozen). frozen: file of the frozen table.
    frozen_growth: node (the code: at every node, dynamic first) | after_tree (the paper's words). accounting: refeed
    (TDL counts what the last step committed, as the code feeds it again) | kept (one). growth: reference | merged.
    """

    learned = ("dynamic",)

    sources = ("dynamic", "frozen")

    def __init__(
        self,
        leader_length: int = 1,
        leader_capacity: int = 2**20,
        follower_length: int = 3,
        follower_capacity: int = 128,
        total_draft_length: int = 96,
        chaining_reserve: int = 16,
        tables: Tables = "dual",
        frozen: str | None = None,
        frozen_growth: Literal["node", "after_tree"] = "node",
        accounting: Literal["refeed", "kept"] = "refeed",
        growth: Literal["reference", "merged"] = "reference",
    ) -> None:
        require_count("leader_length", leader_length)
        require_count("leader_capacity", leader_capacity)
        require_count("follower_length", follower_length)
        require_count("follower_capacity", follower_capacity)
        require_count("total_draft_length", total_draft_length)
        require_count("chaining_reserve", chaining_reserve, low=0)
        self.leader_length, self.follower_length = leader_length, follower_length
        self.total_draft_length, self.chaining_reserve = total_draft_length, chaining_reserve
        self.tables, self.frozen_growth, self.accounting, self.growth = tables, frozen_growth, accounting, growth
        self.dynamic = LruTable(leader_capacity, follower_capacity)
        self.frozen: FrozenTable | None = None
        self._path = frozen
        self._read: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The frozen table's file."""
        return (self._read,) if self._read else ()

    def check(self, model: ModelCard) -> None:
        """Read the frozen table: it must be of the target's tokenizer and of the same lengths."""
        if self.tables == "dynamic":
            return
        if not self._path:
            raise InputError(
                f"frozen: not set and model={model.name} names no table; build one with"
                " specbench build frozen_table, or do without by tables=dynamic"
            )
        lengths = {"%LL": self.leader_length, "%FL": self.follower_length}
        path = locate_file(self._path)
        for name, length in lengths.items():
            path = path.replace(name, str(length))
        table = FrozenTable.load(Path(path), len(model.tokenizer), "frozen")
        built = (table.leader_length, table.follower_length)
        if built != tuple(lengths.values()):
            raise InputError(
                f"frozen={path}: built with leader and follower lengths {built};"
                f" expected {tuple(lengths.values())}: build it anew with --leader and --follower, for a sweep one file"
                " a pair ('t_%LL_%FL.safetensors' names them), or do without by"
                " tables=dynamic"
            )
        self.frozen, self._read = table, path

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

    def query_dynamic(self, leader: Gram, room: int) -> list[tuple[int, Iterable[Gram]]]:
        """Followers of the dynamic table, most recent first; none in the Only Frozen variant."""
        return [] if self.tables == "frozen" else [(DYNAMIC, self.dynamic.recent(leader))]

    def query_frozen(self, leader: Gram, room: int) -> list[tuple[int, Iterable[Gram]]]:
        """Followers of the frozen table, most frequent first, one more than ``room`` tokens hold; none without one."""
        if self.frozen is None:
            return []
        most = max(room, 0) // self.follower_length + 1 if self.growth == "reference" else None
        return [(FROZEN, self.frozen.get(leader, most))]

    def query(self, leader: Gram, room: int) -> list[tuple[int, Iterable[Gram]]]:
        """Dynamic first, then frozen, at the same node, a follower found in both twice: the code's order."""
        return self.query_dynamic(leader, room) + self.query_frozen(leader, room)

    def state_bytes(self) -> int:
        """Bytes of both tables."""
        return self.dynamic.nbytes() + (self.frozen.nbytes() if self.frozen else 0)
