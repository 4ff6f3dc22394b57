"""The matrix of Token Recycling (Luo et al. 2025, section 3): every token's last top-k successors.

A draft fills a static tree from it level by level; every forward's top-k, rejected nodes too, are written back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from methods.parts.tree_template import TreeTemplate
from specbench.types import Draft, TopK

Update = Literal["last", "first", "merge"]


class RecyclingMatrix:
    """(V, k) candidates of every token, on the target's device."""

    def __init__(self, template: TreeTemplate, k: int, update: Update, vocab: int, device: torch.device) -> None:
        """k: candidates kept a token. update: which of a repeated token's rows stays (see ``TokenRecycling``)."""
        self._template, self._k, self._update = template, k, update
        self.rows = torch.zeros(vocab, k, dtype=torch.long, device=device)
        ranks, parents = torch.tensor(template.ranks), torch.tensor(template.parents) + 1
        self._ranks, self._parents = ranks.to(device), parents.to(device)  # parents: rows of ``fed``, 0 = root

    def clear(self) -> None:
        """A cold matrix: every token's candidates are token 0, as in the reference."""
        self.rows.zero_()

    def draft(self, root: int) -> Draft:
        """The template's tree below ``root``, gathered level by level."""
        fed = torch.empty(len(self._template) + 1, dtype=torch.long, device=self.rows.device)
        fed[0] = root
        for start, end in self._template.levels:
            fed[start + 1 : end + 1] = self.rows[fed[self._parents[start:end]], self._ranks[start:end]]
        return Draft(fed[1:], self._template.parents)

    def learn_prompt(self, tokens: Sequence[int], topk: TopK) -> None:
        """Learn from the prefill: row i of ``topk`` holds what follows token i."""
        self.learn(torch.tensor(list(tokens), device=self.rows.device), topk)

    def learn(self, tokens: Tensor, topk: TopK) -> None:
        """Write each row's top-k as its token's candidates. tokens: (rows,); topk: (rows, k)."""
        learned = topk.ids[: len(tokens), : self._k].to(self.rows.device)
        order = torch.arange(len(tokens), device=tokens.device)
        if self._update == "merge":
            same = tokens[:, None] == tokens[None, :]
            nth = (same & (order[None, :] <= order[:, None])).sum(1) - 1  # this row is its token's nth occurrence
            count = same.sum(1)
            rank = torch.arange(self._k, device=tokens.device)
            taken = (rank[None, :] % count[:, None])[:, None, :] == nth[None, :, None]  # (row, occurrence, rank)
            learned = ((taken & same[:, :, None]) * learned[None]).sum(1)
        else:
            winner = torch.empty(len(self.rows), dtype=torch.long, device=tokens.device)
            winner.scatter_reduce_(0, tokens, order, "amax" if self._update == "last" else "amin", include_self=False)
            learned = learned[winner[tokens]]  # all occurrences write the same row, in any order
        self.rows[tokens] = learned

    def nbytes(self) -> int:
        """Bytes of the matrix."""
        return self.rows.nbytes
