"""Token Recycling (Luo et al. 2025, "Turning Trash into Treasure"): a matrix of every token's last top-k successors.

Each forward computes a distribution at every node, rejected ones too; their top-k are written back as the candidates
of the node's token, and the next draft fills a static tree from them breadth first (section 3; the template of 80
nodes is the authors' code's, `docs/methods/token_recycling.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from methods.parts.tree_template import TreeTemplate
from specbench.method import Drafter, Method
from specbench.target.facade import Target
from specbench.types import Draft, InputError, Needs, Prefill, Step, TopK

Update = Literal["last", "first", "merge"]


class _Recycler(Drafter):
    def __init__(self, method: TokenRecycling) -> None:
        self._method = method
        self._fed = torch.empty(0, dtype=torch.long)

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        self._fed = self._method.fill(context[-1])
        return Draft(self._fed[1:], self._method.template.parents)

    def observe(self, step: Step) -> None:
        if step.topk is not None:
            self._method.learn(self._fed, step.topk)


class TokenRecycling(Method):
    """tree: child counts level by level. k: candidates kept a token. update: which of a repeated token's rows stays.

    update: last | first | merge (a stand-in for the unordered device write: each rank from another occurrence).
    update_from_prefill: also learn from the prompt's own distributions (SAM-Decoding's variant).
    """

    def __init__(
        self, tree: list[list[int]], k: int = 8, update: Update = "last", update_from_prefill: bool = False
    ) -> None:
        if k < 1:
            raise InputError(f"k={k}: expected a whole number of at least 1")
        self.template = TreeTemplate.from_counts(tree, k)
        self.k, self.update, self.update_from_prefill = k, update, update_from_prefill

    @property
    def needs(self) -> Needs:
        """The top-k of every node."""
        return Needs(node_topk=self.k, prompt_topk=self.k if self.update_from_prefill else 0)

    def bind(self, target: Target) -> None:
        """Allocate the matrix beside the target."""
        if len(self.template) > target.max_nodes:
            raise InputError(f"tree: {len(self.template)} nodes; expected at most engine.max_nodes={target.max_nodes}")
        device = target.device
        self._matrix = torch.zeros(target.vocab_size, self.k, dtype=torch.long, device=device)
        ranks, parents = torch.tensor(self.template.ranks), torch.tensor(self.template.parents) + 1
        self._ranks, self._parents = ranks.to(device), parents.to(device)  # parents: rows of ``fed``, 0 = root

    def reset(self) -> None:
        """A cold matrix: every token's candidates are token 0, as in the reference."""
        self._matrix.zero_()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Learn what follows the last prompt token, as the reference's first forward does, or every prompt token.

        Prompt row i of ``prefill.topk`` holds what follows prompt token i.
        """
        if prefill.topk is not None:
            learned = prompt if self.update_from_prefill else prompt[-1:]
            self.learn(torch.tensor(list(learned), device=self._matrix.device), prefill.topk)
        return _Recycler(self)

    def fill(self, root: int) -> Tensor:
        """(N+1,) root and the template's tokens, gathered level by level."""
        fed = torch.empty(len(self.template) + 1, dtype=torch.long, device=self._matrix.device)
        fed[0] = root
        for start, end in self.template.levels:
            fed[start + 1 : end + 1] = self._matrix[fed[self._parents[start:end]], self._ranks[start:end]]
        return fed

    def learn(self, tokens: Tensor, topk: TopK) -> None:
        """Write each row's top-k as its token's candidates. tokens: (rows,); topk: (rows, k)."""
        rows = topk.ids[: len(tokens), : self.k].to(self._matrix.device)
        order = torch.arange(len(tokens), device=tokens.device)
        if self.update == "merge":
            same = tokens[:, None] == tokens[None, :]
            nth = (same & (order[None, :] <= order[:, None])).sum(1) - 1  # this row is its token's nth occurrence
            count = same.sum(1)
            rank = torch.arange(self.k, device=tokens.device)
            taken = (rank[None, :] % count[:, None])[:, None, :] == nth[None, :, None]  # (row, occurrence, rank)
            rows = ((taken & same[:, :, None]) * rows[None]).sum(1)
        else:
            winner = torch.empty(len(self._matrix), dtype=torch.long, device=tokens.device)
            winner.scatter_reduce_(0, tokens, order, "amax" if self.update == "last" else "amin", include_self=False)
            rows = rows[
                winner[tokens]
            ]  # every occurrence writes the winner's row, so the order of writes is of no matter
        self._matrix[tokens] = rows

    def state_bytes(self) -> int:
        """Bytes of the matrix."""
        return self._matrix.nbytes
