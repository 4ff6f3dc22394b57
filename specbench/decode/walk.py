"""The walker: which draft nodes the target agrees with. One rule for chains, trees and repeated siblings.

Nodes chosen deterministically: every row of a forward picks one token, the argmax at temperature 0, else ONE draw from
the target's distribution. The draw of a row at depth d uses the uniform number of emitted position ``emitted + d``:
rows at the same depth share it, a request consumes exactly one number an emitted token, and such a draft gives
vanilla's ids for the same seed (sample-and-match; Leviathan et al. 2023, algorithm 1, for a one-hot draft).
The path ends at the deepest node whose every ancestor holds its parent's pick, the lowest number first.
Nodes that were drawn are tried one by one (``specbench.decode.acceptance``), with numbers of a stream of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specbench.decode.acceptance import accept_typical, draw, verify_drawn
from specbench.decode.sampling import Sampling
from specbench.target.engine import Verdict
from specbench.target.transfer import upload
from specbench.target.verify import find_accepted_path
from specbench.types import ROOT, CaseError, Draft, Typical


def _require_distributions(draft: Draft, late: Draft | None, vocab: int) -> None:
    """Raise CaseError where a stated distribution is not finite, or of another vocabulary."""
    for stated in (draft.probs, late.probs if late is not None else None):
        if stated is not None and not (stated.shape[-1] == vocab and bool(torch.isfinite(stated).all())):
            raise CaseError(
                f"the drafter states distributions of {tuple(stated.shape)}, not finite or not over {vocab} tokens;"
                " expected one finite distribution a node (draft model: try dtype=float32)"
            )


def _certain(tokens: Sequence[int], like: Tensor) -> Tensor:
    """(N, V) distributions that give each token probability 1."""
    rows = torch.zeros(len(tokens), like.shape[-1], dtype=like.dtype, device=like.device)
    rows[torch.arange(len(tokens)), torch.tensor(list(tokens))] = 1
    return rows


class Walk:
    """The verifier of one request: its distribution and its own stream of uniform numbers."""

    def __init__(
        self, sampling: Sampling | None, seed: int, typical: Typical | None = None, given: int | None = None
    ) -> None:
        """sampling: None is greedy. seed: of the verifier's numbers. typical: lossy acceptance when sampling.

        given: picked first whatever the logits, and not counted as emitted.
        """
        self.sampling = sampling
        self.lossy = sampling is not None and typical is not None
        self._typical = typical
        self._generator = np.random.default_rng(seed)
        self._trials = np.random.default_rng([seed, 1])
        self._uniforms: list[float] = []
        self._emitted = 0
        self._given = given

    def pick(self, logits: Tensor, depths: Sequence[int]) -> Tensor:
        """(rows, V) raw logits -> (rows,) the token each row chooses; depths: (rows,) 0 = the root."""
        if self._given is not None:
            return torch.full((len(logits),), self._given, device=logits.device)
        if self.sampling is None:
            return logits.argmax(-1)
        uniform = upload(self._numbers(depths), logits.device, torch.float64)
        below = self.sampling(logits).double().cumsum(-1)
        drawn = torch.searchsorted(below, (uniform * below[:, -1])[:, None], right=True)[:, 0]
        return drawn.clamp_(max=logits.shape[-1] - 1)

    def _numbers(self, depths: Sequence[int]) -> list[float]:
        last = self._emitted + max(depths)
        while len(self._uniforms) <= last:
            self._uniforms.append(float(self._generator.random()))
        return [self._uniforms[self._emitted + depth] for depth in depths]

    def verify(self, logits: Tensor, draft: Draft, tokens: Sequence[int], late: Draft | None) -> Verdict:
        """Verify by whole distributions: nodes that were drawn, then ``late`` where all are accepted; or lossily.

        logits: (N+1, V) raw, row 0 the root's.
        tokens: (N,) of the draft, on the host.
        late: of its tokens only the first is verified. Without ``probs`` it counts as drawn with probability 1.
        """
        assert self.sampling is not None
        distributions = self.sampling(logits)
        if self._typical is not None:
            path = accept_typical(
                distributions, tokens, [int(node) for node in draft.parents], draft.passenger, self._typical
            )
            return Verdict(path, draw(distributions[path[-1] + 1 if path else 0], self._trials), False)
        _require_distributions(draft, late, distributions.shape[-1])
        path, left = list[int](), distributions[0].double()
        if len(tokens):
            probs = draft.probs if draft.probs is not None else _certain(tokens, distributions)
            parents = [int(parent) for parent in draft.parents]
            path, left = verify_drawn(distributions, tokens, parents, draft.passenger, probs, self._trials)
        if late is not None and len(late) and len(path) == len(tokens):
            token = int(late.tokens[0])
            probs = late.probs[:1] if late.probs is not None else _certain([token], distributions)
            kept, left = verify_drawn(left[None].expand(2, -1), [token], [ROOT], None, probs, self._trials)
            if kept:
                return Verdict(path, token, True)
        return Verdict(path, draw(left, self._trials), False)

    def advance(self, emitted: int) -> None:
        """``emitted`` tokens were committed; later draws use later numbers."""
        if self._given is None:
            self._emitted += emitted
        self._given = None

    @staticmethod
    def follow(
        tokens: Sequence[int], parents: Sequence[int], passenger: Sequence[bool] | None, picks: Sequence[int]
    ) -> list[int]:
        """The accepted path, root side first.

        tokens, parents, passenger: (N,) the draft. picks: (N+1,) row 0 = the root's pick, row i+1 = node i's.
        Example: tokens [5, 6, 5, 7], parents [-1, 0, -1, 2], picks [5, 9, 9, 7, 9] -> [2, 3]: both fives are reached,
        only the second one's child is what its parent picked.
        """
        return find_accepted_path(tokens, parents, passenger, picks)
