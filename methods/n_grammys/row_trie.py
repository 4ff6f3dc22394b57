"""Draft rows merged into a trie: rows that begin alike share nodes, so that each prefix is fed once."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.types import ROOT


def merge_rows(rows: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """Tokens, parents and owners: (N,) each, owner = the first row that holds the node.

    Example: ``merge_rows([(2, 3), (2, 4)])`` is ``([2, 3, 4], [-1, 0, 0], [0, 0, 1])``.
    """
    tokens: list[int] = []
    parents: list[int] = []
    owners: list[int] = []
    nodes: dict[tuple[int, int], int] = {}
    for number, row in enumerate(rows):
        parent = ROOT
        for token in row:
            node = nodes.setdefault((parent, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(parent)
                owners.append(number)
            parent = node
    return tokens, parents, owners
