"""Several drafts as one tree: equal paths are one, a path's chance is the product of its nodes' chances.

A node that several drafters propose is as likely as if they erred independently: 1 - (1 - a)(1 - b).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor

from methods.hybrid import merge_kernels as kernels
from methods.hybrid.acceptance import AcceptanceRates
from specbench.types import CaseError, Draft


class MergedTree:
    """The union of ``drafts``, one a member. tokens, parents, chances, members: (N,) of its nodes."""

    def __init__(self, drafts: Sequence[Draft], rates: AcceptanceRates) -> None:
        """Raises CaseError for a draft that no tree can hold."""
        self._rates = rates
        if any(draft.passenger is not None for draft in drafts):
            raise CaseError("a member of a hybrid drafts passengers; expected a method whose nodes can all be accepted")
        self._starts = np.cumsum([0, *map(len, drafts)])
        self._tokens = _joined([draft.tokens for draft in drafts])
        self._parents = _joined([draft.parents for draft in drafts])
        scores = np.full(len(self._tokens), np.nan)
        for start, draft in zip(self._starts, drafts, strict=False):
            if draft.score is not None:
                scores[start : start + len(draft)] = draft.score
        self._depths, self._classes = kernels.classify(self._parents, scores, self._starts)
        self.tokens, self.parents, self.chances, self.members = kernels.merge(
            self._tokens, self._parents, self._classes, self._starts, rates.rates
        )

    def best(self, budget: int, threshold: float) -> Draft:
        """The ``budget`` likeliest paths' nodes, those below ``threshold`` left out."""
        nodes, parents = kernels.likeliest(self.parents, self.chances, budget, threshold)
        return Draft(
            self.tokens[nodes].tolist(),
            parents.tolist(),
            source=self.members[nodes].tolist(),
            score=self.chances[nodes].tolist(),
        )

    def judge(self, emitted: Sequence[int]) -> list[list[int]]:
        """Tell the rates which nodes were right, as far as ``emitted`` tells; each draft's right path, root first."""
        rates = self._rates
        path, begins = kernels.judge(
            self._tokens, self._parents, self._depths, self._classes, self._starts,
            np.asarray(emitted, np.int64), rates.seen, rates.right,
        )  # fmt: skip
        found = path.tolist()
        return [found[start:end] for start, end in pairwise(begins)]


def _joined(parts: Sequence[Sequence[int] | Tensor]) -> np.ndarray:
    """(M,) int64 of all parts, on the host."""
    plain = [part.cpu().numpy() if isinstance(part, Tensor) else np.array(part, np.int64) for part in parts]
    return np.concatenate(plain).astype(np.int64, copy=False)
