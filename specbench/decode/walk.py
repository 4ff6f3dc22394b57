"""The walker: which draft nodes the target agrees with. One rule for chains, trees and repeated siblings.

Every row of a forward picks one token: the argmax at temperature 0, else ONE draw of the target's law. The draw of a
row at depth d uses the request's uniform number for emitted position ``emitted + d``, so rows at the same depth share
it, a request consumes exactly one number an emitted token, and a deterministic draft gives vanilla's very ids for the
same seed (methods_draft_model, sample-and-match; Leviathan et al. 2023, algorithm 1, for a one-hot draft law).
The path ends at the deepest node whose every ancestor holds its parent's pick, the lowest number first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specbench.decode.law import Law
from specbench.types import ROOT


class Walk:
    """The verifier of one request: its law, and its own stream of uniform numbers."""

    def __init__(self, law: Law | None, seed: int) -> None:
        """law: None is greedy. seed: of the verifier's numbers, independent of the drafter's."""
        self.law = law
        self._generator = np.random.default_rng(seed)
        self._uniforms: list[float] = []
        self._emitted = 0

    def pick(self, logits: Tensor, depths: Sequence[int]) -> Tensor:
        """(rows, V) raw logits -> (rows,) the token each row chooses; depths: (rows,) 0 = the root."""
        if self.law is None:
            return logits.argmax(-1)
        uniform = torch.tensor(self._numbers(depths), dtype=torch.float64, device=logits.device)
        below = self.law(logits).double().cumsum(-1)
        drawn = torch.searchsorted(below, (uniform * below[:, -1])[:, None], right=True)[:, 0]
        return drawn.clamp_(max=logits.shape[-1] - 1)

    def _numbers(self, depths: Sequence[int]) -> list[float]:
        last = self._emitted + max(depths)
        while len(self._uniforms) <= last:
            self._uniforms.append(float(self._generator.random()))
        return [self._uniforms[self._emitted + depth] for depth in depths]

    def advance(self, emitted: int) -> None:
        """``emitted`` tokens were committed; later draws use later numbers."""
        self._emitted += emitted

    @staticmethod
    def follow(
        tokens: Sequence[int], parents: Sequence[int], passenger: Sequence[bool] | None, picks: Sequence[int]
    ) -> list[int]:
        """The accepted path, root side first.

        tokens, parents, passenger: (N,) the draft. picks: (N+1,) row 0 = the root's pick, row i+1 = node i's.
        Example: tokens [5, 6, 5, 7], parents [-1, 0, -1, 2], picks [5, 9, 9, 7, 9] -> [2, 3]: both fives are reached,
        only the second one's child is what its parent picked.
        """
        depth = [0] * len(tokens)  # 0 = not reached
        best = ROOT
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            if passenger is not None and passenger[node]:
                continue
            above = 1 if parent == ROOT else depth[parent] + 1
            if (parent != ROOT and not depth[parent]) or token != picks[parent + 1]:
                continue
            depth[node] = above
            if best == ROOT or above > depth[best]:
                best = node
        path: list[int] = []
        while best != ROOT:
            path.append(best)
            best = parents[best]
        return path[::-1]
