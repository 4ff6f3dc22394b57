"""The walker: which draft nodes the target agrees with. One rule for chains, trees and repeated
siblings.

Nodes chosen deterministically: every row of a forward picks one token, the argmax at temperature 0,
else ONE draw from the target's distribution. The draw of a row at depth d uses the uniform number
of emitted position ``emitted + d``: rows at the same depth share it, a request consumes exactly one
number an emitted token, and such a draft gives vanilla's ids for the same seed (sample-and-match;
Leviathan et al. 2023, algorithm 1, for a one-hot draft). The path ends at the deepest node that,
like all its ancestors, is its parent's pick; the lowest number wins ties. Nodes that were drawn are
tried one by one (``specbench.decode.acceptance``), or verified by whole paths (``BlockTest``), with
numbers of a separate stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from specbench.decode.acceptance import (
    RatioTest,
    Uniforms,
    draw,
    follow_lossy,
    judge_lossy,
    residuals,
    verify_one_by_one,
)
from specbench.decode.sampling import Sampling
from specbench.models.engine import Verdict
from specbench.models.transfer import read_numbers, upload
from specbench.models.tree import is_chain
from specbench.models.verify import continues, find_accepted_path, require_finite
from specbench.types import ROOT, CaseError, Draft, Lossy


def _state(draft: Draft, tokens: Tensor, like: Tensor) -> Tensor:
    """(N, V) what nodes were drawn from: what the draft states, else their tokens with probability
    1.
    """
    if draft.probs is not None:
        _require_stated(draft.probs.shape[-1] == like.shape[-1], draft.probs, like)
        return draft.probs.to(like.device)
    return like.new_zeros(len(tokens), like.shape[-1]).scatter_(1, tokens[:, None], 1.0)


def _require_stated(right: bool, stated: Tensor, like: Tensor) -> None:
    """Raise CaseError where a stated distribution is not ``right``."""
    if not right:
        raise CaseError(
            f"the drafter states distributions of {tuple(stated.shape)}, not finite or not over"
            f" {like.shape[-1]} tokens; expected one finite distribution a node (draft model: try"
            " dtype=float32)"
        )


def _read(logits: Tensor, *parts: Tensor) -> list[list[float]]:
    """Tensors of one dimension, in one read-back. Raises CaseError where a row's logits are not
    finite.
    """
    peaks, *found = read_numbers(logits.max(-1).values, *parts)
    require_finite(peaks, logits.dtype)
    return found


class Walk:
    """The verifier of one request: its distribution and its own stream of uniform numbers."""

    def __init__(
        self,
        sampling: Sampling | None,
        seed: int,
        rule: Lossy | None = None,
        given: int | None = None,
        audits: bool = False,
    ) -> None:
        """sampling: None is greedy. seed: of the verifier's numbers. rule: of lossy acceptance,
        None is exact.

        given: picked first whatever the logits, and not counted as emitted. audits: see ``stats``.
        """
        self.sampling = sampling
        self._rule, self.lossy = rule, rule is not None and rule.begun
        self._picks = Uniforms(np.random.default_rng(seed))
        self._trials = Uniforms(np.random.default_rng([seed, 1]))
        self._given = given
        self._overlaps: list[Tensor] | None = [] if audits else None

    @property
    def picks_best(self) -> bool:
        """See ``Verifier``."""
        return self.sampling is None and self._given is None and self._rule is None

    def pick(self, logits: Tensor, depths: Sequence[int] | Tensor) -> Tensor:
        """(rows, V) raw logits -> (rows,) the token each row chooses; depths: (rows,) 0 = the
        root.
        """
        if self._given is not None:
            return torch.full((len(logits),), self._given, device=logits.device)
        if self.sampling is None:
            return logits.argmax(-1)
        places = range(len(logits)) if isinstance(depths, Tensor) else depths
        numbers = upload(self._picks.ahead(places), logits.device, torch.float64)
        return draw(
            self.sampling(logits), numbers[depths] if isinstance(depths, Tensor) else numbers
        )

    def numbers(self, depths: Sequence[int]) -> list[float] | None:
        """See ``Verifier``."""
        return (
            None if self.sampling is None or self._given is not None else self._picks.ahead(depths)
        )

    def draw(self, logits: Tensor, numbers: Sequence[float]) -> Tensor:
        """See ``Verifier``."""
        assert self.sampling is not None
        return draw(self.sampling(logits), upload(numbers, logits.device, torch.float64))

    def verify(
        self, logits: Tensor, draft: Draft, parents: Sequence[int], fed: Tensor, late: Draft | None
    ) -> Verdict:
        """Verify by complete distributions: nodes that were drawn, then ``late`` where all are
        accepted; or lossily.

        The step's only read-back is here.
        logits: (N+1, V) raw, row 0 the root's.
        parents: (N,) of the draft, on the host.
        fed: (N+1,) int64 tokens of the rows, on the device.
        late: of its tokens only the first is verified. Without ``probs`` it counts as drawn with
        probability 1.
        """
        distributions = (
            logits.float().softmax(-1) if self.sampling is None else self.sampling(logits)
        )
        above = [int(node) for node in parents]
        if self._rule is not None and self.lossy:
            return self._verify_lossily(
                self._rule, logits, distributions, draft, above, fed[1:], late
            )
        return self._verify_drawn(logits, distributions, draft, above, fed[1:], late)

    def _verify_lossily(
        self,
        rule: Lossy,
        logits: Tensor,
        distributions: Tensor,
        draft: Draft,
        parents: list[int],
        tokens: Tensor,
        late: Draft | None,
    ) -> Verdict:
        """Verify by the rule; the path ends at the token after which acceptance is exact."""
        judged = judge_lossy(distributions, tokens, parents, rule)
        if self.sampling is None:
            picks = logits.argmax(-1)
        else:
            picks = draw(
                distributions, upload(self._trials.ahead([0]), logits.device, torch.float64)
            )
            self._trials.used += 1
        after, chosen, likely, scores = _read(logits, picks, tokens, *judged)
        path = follow_lossy(likely, scores, parents, draft.passenger)
        ids = [int(chosen[node]) for node in path]
        end = None if rule.marks is None else rule.marks[1]
        if end in ids:
            path = path[: ids.index(end) + 1]
        ids = [*ids[: len(path)], int(after[path[-1] + 1 if path else 0])]
        return Verdict(
            path, ids, continues(late, len(path) == len(parents) and end not in ids, ids[-1])
        )

    def _verify_drawn(
        self,
        logits: Tensor,
        distributions: Tensor,
        draft: Draft,
        parents: list[int],
        tokens: Tensor,
        late: Draft | None,
    ) -> Verdict:
        assert self.sampling is not None
        count, passenger, stated = (
            len(parents),
            draft.passenger,
            _state(draft, tokens, distributions),
        )
        # its first token is one more node of the chain
        if late is not None and len(late) and is_chain(parents):
            behind = (
                late.tokens[:1]
                if isinstance(late.tokens, Tensor)
                else upload(late.tokens[:1], logits.device)
            )
            first = replace(late, probs=None if late.probs is None else late.probs[:1])
            stated = torch.cat([stated, _state(first, behind, distributions)])
            tokens, parents = torch.cat([tokens, behind]), [*parents, count - 1]
            passenger = None if passenger is None else [*passenger, False]
        if self._overlaps is not None and count:
            self._overlaps.append(torch.minimum(distributions[0], stated[0]).sum())
        finite, on_host = torch.isfinite(stated).all()[None], logits.device.type == "cpu"
        test: BlockTest | RatioTest | None = None
        if self.sampling.blocks:
            test = BlockTest(parents, passenger, len(logits))
        elif not on_host:
            test = RatioTest(parents, passenger, len(logits))
        judged = [] if test is None else [test.compute(distributions, tokens, stated, self._trials)]
        right, chosen, *found = _read(logits, finite, tokens, *judged)
        _require_stated(bool(right[0]), stated, logits)
        ids = [int(token) for token in chosen]
        if test is None:
            path, last = verify_one_by_one(
                distributions, ids, parents, passenger, stated, self._trials
            )
        else:
            path, last = test.follow(found[0], self._trials)
        emitted = [*(ids[node] for node in path), *([] if last is None else [last])]
        return Verdict(path[:count], emitted, last is None)

    def stats(self) -> dict[str, float]:
        """overlap: of the target's law behind the root with that of the first node, 1 - total
        variation, on average.

        With ``audits``, where nodes were drawn: it takes a moment of each step.
        """
        found = self._overlaps
        return {"overlap": float(torch.stack(found).mean())} if found else {}

    def advance(self, emitted: Sequence[int]) -> None:
        """These tokens were committed: later draws use later numbers, and a lossy rule may begin or
        end.
        """
        if self._given is None:
            self._picks.used += len(emitted)
        self._given = None
        if self._rule is None or self._rule.marks is None:
            return
        begin, end = self._rule.marks
        self.lossy = self.lossy or begin in emitted
        if self.lossy and end in emitted:  # a later mark is part of the answer
            self._rule, self.lossy = None, False

    @staticmethod
    def follow(
        tokens: Sequence[int],
        parents: Sequence[int],
        passenger: Sequence[bool] | None,
        picks: Sequence[int],
    ) -> list[int]:
        """The accepted path, root side first.

        tokens, parents, passenger: (N,) the draft. picks: (N+1,) row 0 = the root's pick, row i+1 =
        node i's. Example: tokens [5, 6, 5, 7], parents [-1, 0, -1, 2], picks [5, 9, 9, 7, 9] -> [2,
        3]: both fives are reached, only the second one's child is what its parent picked.
        """
        return find_accepted_path(tokens, parents, passenger, picks)


class BlockTest:
    """Block verification of one draft: nodes are accepted by the probability of their complete
    path.

    A chain is verified as by Sun et al. 2024 (Block Verification Accelerates Speculative Decoding,
    algorithm 2), a tree by traversal from its leaves (Weng et al. 2025, Traversal Verification),
    which on a chain is the same. With p the target's distribution after a node and q the one its
    child x was drawn from:

    * the root has weight 1, a child min(1, weight of its parent * p(x) / q(x));
    * a child that is rejected leaves its parent max(weight * p - q, 0): normalised it is the new p,
      and with its sum s the new weight is s / (s + 1 - weight);
    * nodes are tested children first, each with the weight that its children leave it. The first
      one that is accepted ends the path, and p there is what the next token is drawn from. The
      root's weight stays 1.

    Both are exact, as the ratio test is, and on a chain no exact rule accepts more tokens on
    average.

    Weights are computed on the device for every node and every end of the path, then followed on
    the host. No weight depends on a test's outcome, and the order of the tests is fixed. So the
    host reads once.
    """

    def __init__(self, parents: Sequence[int], passenger: Sequence[bool] | None, rows: int) -> None:
        """parents, passenger: (N,) of the draft. rows: the target's, N + 1; a last node behind them
        has none.
        """
        self._parents, self._rows = parents, rows
        self._children: dict[int, list[int]] = {}
        self._waves: list[list[int]] = []  # nodes whose parent and earlier siblings are weighed
        wave = {ROOT: -1}
        for node, parent in enumerate(parents):
            if parent not in wave or (passenger is not None and passenger[node]):
                continue
            siblings = self._children.setdefault(parent, [])
            wave[node] = 1 + max(wave[place] for place in (parent, *siblings[-1:]))
            siblings.append(node)
            if wave[node] == len(self._waves):
                self._waves.append([])
            self._waves[wave[node]].append(node)
        self._order = self._children_first()

    def _children_first(self) -> list[int]:
        order, open_ = [], [ROOT]
        while open_:  # parents first, later siblings first
            order.append(open_.pop())
            open_.extend(self._children.get(order[-1], ()))
        return order[:0:-1]

    def weigh(self, distributions: Tensor, tokens: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
        """(N + 1,) weights of root and nodes, all their children rejected; (rows, V) the
        distributions there; float64.

        distributions: (rows, V) float32, the target's, row 0 the root's.
        tokens: (N,) int64, of the nodes.
        probs: (N, V) float32, the distribution each node was drawn from.
        """
        left = distributions.to(torch.float64, copy=True)
        untried, weights = left.clone(), left.new_ones(len(tokens) + 1)
        for wave in self._waves:
            node, row = upload([wave, [self._parents[node] + 1 for node in wave]], left.device)
            token, drawn = tokens[node][:, None], probs[node].double()
            weight, before = weights[row], left[row]
            ratio = (before.gather(1, token) / drawn.gather(1, token))[:, 0]
            weights[node + 1] = (weight * ratio).nan_to_num(0.0, 1.0).clamp(max=1)
            untried[row] = untried[row].scatter(1, token, 0.0)
            scaled = weight[:, None] * before
            rest = (scaled - drawn).clamp(min=0).sum(-1)
            weights[row] = torch.where(weight < 1, rest / (rest + 1 - weight), weight)
            left[row] = residuals(scaled, drawn, distributions[row].double(), untried[row])
        return weights, left

    def compute(
        self, distributions: Tensor, tokens: Tensor, probs: Tensor, uniforms: Uniforms
    ) -> Tensor:
        """(N + rows,) float64: 1 where a node is accepted if it is tested; the token drawn behind
        each row.

        Tensors as in ``weigh``.
        """
        weights, left = self.weigh(distributions, tokens, probs)
        place = {node: number for number, node in enumerate(self._order)}
        trials = [place.get(node, 0) for node in range(len(tokens))]
        ends = [place.get(node, len(self._order) - 1) + 1 for node in range(ROOT, self._rows - 1)]
        numbers = upload(uniforms.ahead([*trials, *ends]), left.device, torch.float64)
        accepted = numbers[: len(trials)] < weights[1:]
        return torch.cat([accepted.double(), draw(left, numbers[len(trials) :]).double()])

    def follow(self, judged: Sequence[float], uniforms: Uniforms) -> tuple[list[int], int | None]:
        """(the accepted path, the token drawn behind it, None behind a node without a row of the
        target's).

        judged: of ``compute``. uniforms: the numbers of the tests on the path, and of the draw,
        count as used.
        """
        end = ROOT
        for node in self._order:
            uniforms.used += 1
            if judged[node]:
                end = node
                break
        path, place = [], end
        while place != ROOT:
            path.append(place)
            place = self._parents[place]
        if end + 1 >= self._rows:
            return path[::-1], None
        uniforms.used += 1
        return path[::-1], int(judged[len(self._parents) + end + 1])
