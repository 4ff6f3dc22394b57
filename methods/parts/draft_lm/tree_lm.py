"""A draft language model over a token tree: each node is one row of a forward, masked to context and ancestors.

A node keeps its slot in the KV cache until the tree is committed or pruned, so a node's logits are computed once
however long it stays (tree attention, docs/tree_attention.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from methods.parts.draft_lm.draft_lm import DraftCall, DraftLM, DraftRequest
from specbench.models.tree import TreeRows
from specbench.types import ROOT

START = 64  # nodes that the bookkeeping has room for at first; it doubles


class TreeRequest(DraftRequest):
    """One request's tree behind the committed context. Nodes are numbered in the order in which they were fed.

    ``ROOT`` is the context's last token: what ``feed`` returned are the root's logits.
    """

    def __init__(self, lm: DraftLM, vocab: int) -> None:
        """vocab: as in ``DraftRequest``."""
        super().__init__(lm, vocab)
        self._depths: list[int] = []  # of each node, 1 = child of the root
        self._lines = np.zeros((START + 1, START), dtype=bool)  # row 0 root, row i + 1: node i and its ancestors

    def __len__(self) -> int:
        """Nodes in the tree."""
        return len(self._depths)

    @property
    def held(self) -> int:
        """[tokens] of the context in the cache."""
        return len(self._held)

    def rewind(self, context: Sequence[int], settled: int) -> int:
        """As ``DraftRequest.rewind``; the tree is dropped, and so it is by ``feed``."""
        self._depths.clear()
        return super().rewind(context, settled)

    def step(self, token: int | Tensor) -> Tensor:
        """One more node below the newest one, or below the root; its logits (V,)."""
        return self.expand(token.view(1) if isinstance(token, Tensor) else [token], [len(self) - 1])[0]

    @torch.inference_mode()
    def expand(self, tokens: Sequence[int] | Tensor, parents: Sequence[int]) -> Tensor:
        """Feed m new nodes in one forward; see ``expanding``."""
        return self.expanding(tokens, parents).run()

    def expanding(self, tokens: Sequence[int] | Tensor, parents: Sequence[int]) -> DraftCall:
        """The forward over m new nodes, the request's next: logits (m, V) of what follows each of them.

        tokens: (m,) ids, on the host or a device.
        parents: (m,) nodes fed before or earlier in this call, or ``ROOT``.
        Raises ValueError when a parent does not stand before its child.
        """
        start = len(self)
        self._enter(parents)
        end = len(self)
        places = [self.held - 1 + depth for depth in self._depths]
        tree = TreeRows(self._lines[start + 1 : end + 1, :end], places)
        return self._forward(tokens, places[start:], tree, end - start)

    @torch.inference_mode()
    def commit(self, path: Sequence[int], tokens: Sequence[int], kept: Sequence[int] = ()) -> None:
        """The nodes of ``path`` (from a child of the root downwards) join the context; ``tokens``: their ids.

        kept: nodes below the path's end that stay in the tree, renumbered 0, 1, ... in this order; all others are
        dropped. Raises ValueError when path and kept do not hang together.
        """
        nodes, depth = [*path, *kept], len(path)
        rows = self._lines[np.asarray(nodes, dtype=int) + 1]
        inside = rows[:, nodes]
        whole = inside.sum(1) == [self._depths[node] for node in nodes]
        below = inside[depth:, :depth].all() and (np.tri(depth, dtype=bool) == inside[:depth, :depth]).all()
        if not whole.all() or not below:
            raise ValueError(f"nodes {nodes} are no path of {depth}, or a kept node lacks an ancestor")
        base = self.held
        self.cache.keep(base, [base + node for node in nodes])
        self._held += tokens
        self._depths = [self._depths[node] - depth for node in kept]
        self._lines[1 : len(kept) + 1] = False
        self._lines[1 : len(kept) + 1, : len(kept)] = inside[depth:, depth:]

    def prune(self, kept: Sequence[int]) -> None:
        """Keep these nodes (each with all its ancestors), renumbered 0, 1, ..., and drop the rest."""
        self.commit((), (), kept)

    def _enter(self, parents: Sequence[int]) -> None:
        """Record the new nodes' depths and ancestors."""
        start, end = len(self), len(self) + len(parents)
        if end > self._lines.shape[1]:
            size = 2 * end
            grown = np.zeros((size + 1, size), dtype=bool)
            grown[: start + 1, :start] = self._lines[: start + 1, :start]
            self._lines = grown
        self._lines[start + 1 : end + 1] = False
        for node, parent in enumerate(parents, start):
            if not ROOT <= parent < node:
                raise ValueError(f"parent of node {node} is {parent}; expected {ROOT} (root) or a smaller node number")
            self._lines[node + 1, :node] = self._lines[parent + 1, :node]
            self._lines[node + 1, node] = True
            self._depths.append(1 if parent == ROOT else self._depths[parent] + 1)
