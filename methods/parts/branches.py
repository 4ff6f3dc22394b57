"""A draft tree put together from chains of tokens, each hung below a node; shared prefixes are merged on request."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.types import Draft


class Branches:
    """The growing draft: tokens, parents and source are those of a ``Draft``."""

    def __init__(self, merge: bool) -> None:
        """merge: a child that repeats a sibling's token is that sibling, with its source; False makes another node."""
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.source: list[int] = []
        self.merge = merge
        self._children: dict[tuple[int, int], int] = {}  # (node, token) -> node, when merging

    def __len__(self) -> int:
        return len(self.tokens)

    def to_draft(self) -> Draft:
        """Returns the grown tree as a draft."""
        return Draft(self.tokens, self.parents, source=self.source)

    # Nests deeper: the hot loop of a draft, measured.
    def add(self, node: int, tokens: Sequence[int], source: int, room: int) -> int:
        """Spell ``tokens`` below ``node`` with at most ``room`` new nodes; returns the last node."""
        start = len(self.tokens)
        if not self.merge:
            fresh = tokens[: max(room, 0)]
            if not fresh:
                return node
            self.tokens += fresh
            self.parents.append(node)
            self.parents += range(start, start + len(fresh) - 1)
            self.source += [source] * len(fresh)
            return start + len(fresh) - 1
        children, most, count = self._children, start + room, start
        for token in tokens:
            child = children.setdefault((node, token), count)
            if child == count:
                if count >= most:
                    del children[node, token]
                    break
                self.tokens.append(token)
                self.parents.append(node)
                self.source.append(source)
                count += 1
            node = child
        return node
