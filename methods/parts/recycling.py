"""The matrix of Token Recycling (Luo et al. 2025, section 3): every token's last top-k successors.

A draft fills a static tree from it level by level; every forward's top-k, rejected nodes too, are
written back. On a GPU all of it is enqueued and nothing waits; on a CPU numpy does the same in the
same memory, in a fifth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from methods.parts.tree_shape import TreeShape
from specbench.types import EMPTY, MOST, Draft, TopK

Update = Literal["last", "first", "merge"]


class RecyclingMatrix:
    """(V, k) candidates of every token, on the target's device."""

    def __init__(
        self,
        shape: TreeShape,
        k: int,
        update: Update,
        vocab: int,
        device: torch.device,
        on_host: bool | None = None,
    ) -> None:
        """shape: of the draft; the child of rank r holds its parent token's candidate r. k:
        candidates kept a token.

        update: which of a repeated token's rows stays (see ``TokenRecycling``). on_host: work with
        numpy; None = where the device is a CPU.
        """
        self._shape, self._k, self._update, self._device = shape, k, update, device
        self.rows = torch.zeros(vocab, k, dtype=torch.long, device=device)
        self._on_host = device.type == "cpu" if on_host is None else on_host
        # nodes -> shape and its levels
        self._plans: dict[int, tuple[TreeShape, list[tuple[Any, Any]]]] = {}
        self._plan(len(shape))

    def clear(self) -> None:
        """A cold matrix: every token's candidates are token 0, as in the reference."""
        self.rows.zero_()

    def _plan(self, nodes: int) -> tuple[TreeShape, list[tuple[Any, Any]]]:
        """The shape's likeliest nodes, and of each level's nodes the place of the parent one level
        up, and the rank.
        """
        if nodes in self._plans:
            return self._plans[nodes]
        # where the level above starts in root and draft; 0 = the root
        whole, above, levels = self._shape, 0, []
        shape = whole if nodes == len(whole) else whole.part(whole.likeliest(nodes))
        for level in shape.levels:
            ranks = np.array(level.ranks)
            parents = np.array(shape.parents[level.start : level.start + len(ranks)]) + 1 - above
            on_device = (
                torch.from_numpy(parents).to(self._device),
                torch.from_numpy(ranks).to(self._device),
            )
            levels.append((parents, ranks) if self._on_host else on_device)
            above = level.start + 1
        return self._plans.setdefault(nodes, (shape, levels))

    def draft(self, root: int, budget: int = MOST) -> Draft:
        """The tree below ``root``, gathered level by level, or its ``budget`` likeliest nodes."""
        if not budget:
            return EMPTY
        shape, levels = self._plan(min(budget, len(self._shape)))
        host = self._on_host
        rows: Any = self.rows.numpy() if host else self.rows  # the same memory, also of a copy
        level: Any = np.array([root]) if host else torch.full((1,), root, device=self.rows.device)
        filled = []
        for parents, ranks in levels:
            level = rows[level[parents], ranks]
            filled.append(level)
        return Draft(np.concatenate(filled).tolist() if host else torch.cat(filled), shape.parents)

    def learn_prompt(self, tokens: Sequence[int], topk: TopK) -> None:
        """Learn from the prefill: row i of ``topk`` has the candidates after token i."""
        self.learn(torch.tensor(tokens, device=self.rows.device), topk)

    def learn(self, tokens: Tensor, topk: TopK) -> None:
        """Write each row's top-k as its token's candidates.

        tokens: (rows,) int64.
        topk: (rows, k).
        """
        learned = topk.ids[: len(tokens), : self._k]
        if self._on_host and self._update != "merge":
            order = slice(None) if self._update == "last" else slice(None, None, -1)
            # of equal indices the last one stays
            self.rows.numpy()[tokens.numpy()[order]] = learned.numpy()[order]
            return
        learned = learned.to(self.rows.device)
        ordered, place = torch.sort(tokens, stable=True)
        # a token's occurrences: place[first:end], in order
        first = torch.searchsorted(ordered, tokens)[:, None]
        end = torch.searchsorted(ordered, tokens, right=True)[:, None]
        if self._update == "merge":
            chosen = first + torch.arange(self._k, device=self.rows.device) % (end - first)
        else:
            chosen = (first if self._update == "first" else end - 1).expand(-1, self._k)
        # All occurrences of a token write the same row, in any order.
        self.rows[tokens] = learned.gather(0, place[chosen])

    def nbytes(self) -> int:
        """Bytes of the matrix."""
        return self.rows.nbytes
