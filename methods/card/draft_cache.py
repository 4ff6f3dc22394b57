"""The cache that a draft model fills while the target runs: layers of the likeliest continuations (CARD, section 2.2).

Layer l holds the ``width`` likeliest sequences of l + 1 tokens behind the root, as nodes of one tree; the secondary
cache holds each expanded node's best children, from which the next layer, or one that a correction emptied, is chosen.
Nodes have ids of their own that never change and are never used again, and so has the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class TreeLayer:
    """Nodes of one depth, the likeliest first. ids are ascending.

    ids, tokens, parents: (n,) parents are ids. weights: (n,) log-probability of the path from the cache's base.
    best: (n, k) tokens of the secondary cache, likeliest first, and chances: (n, k) their log-probabilities given the
    path; None until the draft model has read the layer.
    """

    ids: np.ndarray
    tokens: np.ndarray
    parents: np.ndarray
    weights: np.ndarray
    best: np.ndarray | None = None
    chances: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, keep: np.ndarray) -> TreeLayer:
        """Only the nodes of a (n,) bool mask."""
        best = None if self.best is None else self.best[keep]
        chances = None if self.chances is None else self.chances[keep]
        return TreeLayer(self.ids[keep], self.tokens[keep], self.parents[keep], self.weights[keep], best, chances)


class DraftCache:
    """width: nodes a layer (K). children: of a node in the secondary cache (k). eos: tokens nothing follows."""

    def __init__(self, width: int, children: int, eos: frozenset[int]) -> None:
        self._width, self.children = width, children
        self._eos = np.array(sorted(eos), dtype=np.int64)
        self._next = 0
        self.restart()

    def restart(self) -> None:
        """Forget everything; a new root that the draft model has not read yet."""
        self._base = TreeLayer(self._new_ids(1), np.zeros(1, np.int64), np.full(1, -1), np.zeros(1))
        self.root = int(self._base.ids[0])
        self.layers: list[TreeLayer] = []
        self._head = 0  # layers before this one are the verified path's, kept only where nothing is pruned

    def _new_ids(self, count: int) -> np.ndarray:
        self._next += count
        return np.arange(self._next - count, self._next, dtype=np.int64)

    @property
    def ahead(self) -> int:
        """Layers behind the root."""
        return len(self.layers) - self._head

    @property
    def frontier(self) -> TreeLayer:
        """The deepest nodes: the last layer, or the base alone."""
        return self.layers[-1] if self.layers else self._base

    @property
    def unread(self) -> bool:
        """Whether the draft model has the frontier still to read; if not, nothing follows from it."""
        return self.frontier.best is None

    def read(self) -> np.ndarray:
        """(n,) ids of the layers' nodes that the draft model has read, parents before children."""
        return np.concatenate([np.empty(0, np.int64), *(layer.ids for layer in self.layers if layer.best is not None)])

    def grow(self, best: np.ndarray, chances: np.ndarray) -> None:
        """The draft model has read the frontier: keep each node's children (n, k), choose the next layer."""
        self.frontier.best, self.frontier.chances = best, chances
        self._add_layer()

    def _add_layer(self) -> None:
        """The ``width`` likeliest children of the last layer, from the secondary cache; none if there are none."""
        above = self.frontier
        assert above.best is not None
        assert above.chances is not None
        chances = np.where(np.isin(above.tokens, self._eos)[:, None], -np.inf, above.chances)
        if above is self._base:
            chances = above.chances
        weights = (above.weights[:, None] + chances).ravel()
        count = min(self._width, int(np.isfinite(weights).sum()))
        if not count:
            return
        likeliest = np.argpartition(-weights, count - 1)[:count]
        order = likeliest[np.lexsort((likeliest, -weights[likeliest]))]  # equal ones: the first stays the first
        parents = above.ids[order // above.best.shape[1]]
        self.layers.append(TreeLayer(self._new_ids(count), above.best.ravel()[order], parents, weights[order]))

    def query(self, limit: int) -> tuple[list[int], list[int]]:
        """(ids, tokens) of the chain from the root: the heaviest child, its heaviest child and so on."""
        ids: list[int] = []
        tokens: list[int] = []
        node = self.root
        for layer in self.layers[self._head : self._head + limit]:
            below = np.flatnonzero(layer.parents == node)
            if not len(below):
                break
            node = int(layer.ids[below[0]])
            ids.append(node)
            tokens.append(int(layer.tokens[below[0]]))
        return ids, tokens

    def find(self, path: Sequence[int], token: int) -> int | None:
        """The node that holds ``token`` below the accepted ``path`` of ids; None is a miss.

        Raises ValueError when the path does not lead down from the root.
        """
        parent = self.root
        for depth, node in enumerate(path):
            layer = self._layer(depth)
            if layer is None or not ((layer.ids == node) & (layer.parents == parent)).any():
                raise ValueError(f"accepted nodes {list(path)} are no path below root {self.root}")
            parent = node
        layer = self._layer(len(path))
        if layer is None:
            return None
        at = np.flatnonzero((layer.parents == parent) & (layer.tokens == token))
        return int(layer.ids[at[0]]) if len(at) else None

    def _layer(self, depth: int) -> TreeLayer | None:
        place = self._head + depth
        return self.layers[place] if place < len(self.layers) else None

    def move(self, node: int, depth: int) -> None:
        """``node``, ``depth`` layers below the root, is the root now, and nothing is pruned."""
        self._head += depth
        self.root = node

    def correct(self, node: int, depth: int) -> bool:
        """``node`` is the root now: only what follows from it stays. True if a layer had to be chosen anew.

        Weights count from the new root. Where no node of a layer follows from it, the tree is cut there and the layer
        is filled from the secondary cache of the layer above.
        """
        own = self.layers[self._head + depth - 1]
        self._base = own.where(own.ids == node)
        base = self._base.weights.copy()
        self._base.weights -= base
        kept: list[TreeLayer] = []
        above = self._base
        for layer in self.layers[self._head + depth :]:
            layer = layer.where(np.isin(layer.parents, above.ids))
            if not len(layer):
                break
            layer.weights -= base
            kept.append(layer)
            above = layer
        self.layers, self._head, self.root = kept, 0, node
        if self.unread:
            return False
        self._add_layer()
        return True
