"""Twins of the methods that draft trees from tables: Cacheback and REST.

Arguments behind the star are the mutants' knobs; their defaults are the rules of the papers and
codes.
"""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import takewhile

from twins.loop import Propose, Request, Route, Twin, ids_of, places, prefixes, text_of


class Table:
    """Leader -> followers, both in order of use, the most recent last: plain dictionaries and
    lists.
    """

    def __init__(self, leaders: int, followers: int, knobs: Mapping[str, bool]) -> None:
        self.leaders, self.followers, self.knobs = leaders, followers, knobs
        self.rows: dict[Route, list[Route]] = {}

    def put(self, leader: Route, follower: Route) -> None:
        row = self.rows.get(leader, [])
        if follower not in row or not self.knobs.get("fifo"):
            row = [*(each for each in row if each != follower), follower][-self.followers :]
        if not self.knobs.get("fifo_leaders"):
            self.rows.pop(leader, None)
        self.rows[leader] = row
        if len(self.rows) > self.leaders:
            del self.rows[next(iter(self.rows))]

    def get(self, leader: Route) -> list[Route]:
        """Most recent first."""
        if leader in self.rows and not self.knobs.get("query_is_no_use"):
            self.rows[leader] = self.rows.pop(leader)
        return self.rows.get(leader, [])[:: 1 if self.knobs.get("oldest_first") else -1]


def cacheback(
    leader_length=1, leader_capacity=2**20, follower_length=3, follower_capacity=128,
    total_draft_length=96, chaining_reserve=16, accounting="refeed", growth="reference",
    tables="dual", frozen_growth="node", frozen: Mapping[Route, list[Route]] | None = None, *,
    late=0, **knobs,
) -> Twin:  # fmt: skip
    """Ma, Gim, Zhong 2025: followers of the last tokens, and of every follower's end, level by
    level.
    """
    fixed = frozen or {}

    def begin(request: Request) -> Propose:
        table, window, seen = (
            Table(leader_capacity, follower_capacity, knobs),
            leader_length + follower_length,
            0,
        )

        def learn(ids: list[int], start: int) -> None:
            for end in range(max(start, window), len(ids) + 1):
                table.put(
                    tuple(ids[end - window : end - follower_length]),
                    tuple(ids[end - follower_length : end]),
                )

        def propose(context: list[int], last: int) -> list[Route]:
            nonlocal seen
            learn(context[: len(context) - late], seen + 1)
            seen = len(context) - late

            def followers(route: Route, which: str) -> list[Route]:
                leader = (*context[-leader_length:], *route)[-leader_length:]
                learned = table.get(leader) if which != "frozen" else []
                listed = fixed.get(leader, []) if which != "dynamic" else []
                return [*listed, *learned] if knobs.get("frozen_first") else [*learned, *listed]

            room = max(0, total_draft_length - (last if accounting == "refeed" else 1))
            tree = Tree(growth == "merged", room, chaining_reserve, knobs)
            tree.grow(
                lambda route: followers(
                    route, "dynamic" if frozen_growth == "after_tree" else tables
                )
            )
            if frozen_growth == "after_tree":
                tree.left, tree.reserve = room - len(tree.nodes), 0
                # all that there are, before new ones
                tree.ends = [[end for level in tree.ends for end in level]]
                tree.grow(lambda route: followers(route, "frozen"))
            return tree.nodes

        for prompt, answer in request.earlier:
            learn([*prompt, *answer], 0)
        return propose

    return begin


class Tree:
    """A draft of follower chains. left: tokens that it may still take; reserve: more, once the
    first level is done.
    """

    def __init__(self, merged: bool, room: int, reserve: int, knobs: Mapping[str, bool]) -> None:
        self.merged, self.left, self.reserve, self.knobs = merged, room - reserve, reserve, knobs
        self.nodes: list[Route] = []
        self.ends: list[list[Route]] = [[()]]  # of followers, level by level

    def grow(self, followers: Callable[[Route], list[Route]]) -> None:
        level, full = 0, False
        while level < len(self.ends) and self.ends[level] and not (full and not self.reserve):
            if level:
                self.left, self.reserve = self.left + self.reserve, 0
            full = self._level(level, followers)
            level += 1

    def _level(self, level: int, followers: Callable[[Route], list[Route]]) -> bool:
        """Attach followers to a level's ends in order; True when one did not fit, the last one
        tried.
        """
        if level + 1 == len(self.ends):
            self.ends.append([])
        for route in self.ends[level][:: -1 if self.knobs.get("last_child_first") else 1]:
            for follower in followers(route):
                added = [(*route, *part) for part in prefixes(follower)]
                end = added[-1]
                if self.merged:
                    added = [node for node in added if node not in self.nodes]
                if self.left < len(added):
                    return True
                self.nodes += added
                self.left -= len(added)
                if not self.merged or end not in self.ends[level + 1]:
                    self.ends[level + 1].append(end)
        return False


_places = functools.cache(places)  # variants and mutants search one corpus for the same tokens


def rest(
    corpus: str, borders: list[int], longest=16, shortest=2, depth=10, nodes=64, max_matches=10**9,
    cut="paper", cross_documents=True, *, deeper_first=False, shortest_first=False,
    last_of_equals=False, frequent_goes=False, corpus_order=False,
) -> Twin:  # fmt: skip
    """He et al. 2024: the most frequent prefixes of what followed the longest suffix in the corpus,
    one string.
    """

    def propose(context: list[int], last: int) -> list[Route]:
        text = text_of(context)
        occurring = list(
            takewhile(
                lambda n: _places(corpus, text[-n:]), range(shortest, min(longest, len(text)) + 1)
            )
        )
        if not occurring:
            return []
        n = occurring[0 if shortest_first else -1]
        hits = [hit + n for hit in _places(corpus, text[-n:])]
        ends = [
            len(corpus) if cross_documents else borders[bisect_left(borders, hit)] for hit in hits
        ]
        tails = [corpus[hit : min(hit + depth, end)] for hit, end in zip(hits, ends, strict=True)]
        return tree((tails if corpus_order else sorted(tails))[:max_matches])

    def tree(tails: list[str]) -> list[Route]:
        count = Counter(tail[:size] for tail in tails for size in range(1, len(tail) + 1))
        kept = sorted(count, reverse=last_of_equals)
        kept.sort(key=lambda part: (-count[part], -len(part) if deeper_first else len(part)))
        kept = kept[:nodes]
        if cut == "reference":
            cost = {part: len(set(part)) for part in kept}
            for part in sorted(kept if frequent_goes else kept[::-1], key=lambda part: -cost[part]):
                if sum(cost[part] for part in kept) > nodes:
                    kept.remove(part)
        return list({path for part in kept for path in prefixes(ids_of(part))})

    return lambda request: propose
