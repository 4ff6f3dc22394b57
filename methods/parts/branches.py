"""A draft tree put together from chains of tokens, each hung below a node; shared prefixes are merged on request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specbench.types import Draft


class Branches:
    """The growing draft: tokens, parents and source are those of a ``Draft``."""

    def __init__(self, merge: bool) -> None:
        """merge: a child that repeats a sibling's token is that sibling; False lets them stand side by side."""
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

    def follow(self, node: int, tokens: Sequence[int]) -> tuple[int, Sequence[int]]:
        """(the last node below ``node`` that spells ``tokens``, those that no node spells yet)."""
        if self.merge:
            children = self._children
            for place, token in enumerate(tokens):
                child = children.get((node, token))
                if child is None:
                    return node, tokens[place:]
                node = child
            return node, ()
        return node, tokens

    def attach(self, node: int, tokens: Sequence[int], source: int) -> int:
        """Hang new nodes below ``node``, one below the other; returns the last. tokens: at least one."""
        start, length = len(self.tokens), len(tokens)
        end = start + length - 1
        self.tokens += tokens
        self.parents.append(node)
        self.parents += range(start, end)
        self.source += [source] * length
        if self.merge:
            children = self._children
            for child, token in enumerate(tokens, start):
                children[node, token] = node = child
        return end

    def add(self, node: int, tokens: Sequence[int], source: int, room: int) -> None:
        """Spell ``tokens`` below ``node`` with at most ``room`` new nodes."""
        if self.merge:
            self.add_rows(node, (tokens,), (source,), room)
        elif tokens and room > 0:
            self.attach(node, tokens[:room], source)

    # Nests deeper: the hot loop of a draft, measured.
    def add_rows(self, node: int, rows: Iterable[Sequence[int]], sources: Iterable[int], room: int) -> None:
        """Spell each of ``rows`` below ``node``, merged: a shared node has the source of its first row."""
        tokens, parents, owners, children = self.tokens, self.parents, self.source, self._children
        most = len(tokens) + room
        for source, row in zip(sources, rows, strict=False):
            above = node
            for token in row:
                count = len(tokens)
                child = children.setdefault((above, token), count)
                if child == count:
                    if count >= most:
                        del children[above, token]
                        break
                    tokens.append(token)
                    parents.append(above)
                    owners.append(source)
                above = child
