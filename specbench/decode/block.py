"""Block verification: nodes that were drawn are accepted by the probability of their whole path, not token by token.

A chain is verified as by Sun et al. 2024 (Block Verification Accelerates Speculative Decoding, algorithm 2), a tree by
traversal from its leaves (Weng et al. 2025, Traversal Verification), which on a chain is the same. With p the target's
distribution after a node and q the one its child x was drawn from:

* the root has weight 1, a child min(1, weight of its parent * p(x) / q(x));
* a child that is rejected leaves its parent max(weight * p - q, 0): normalised it is the new p, and with its sum s the
  new weight is s / (s + 1 - weight);
* nodes are tested children first, each with the weight that its children leave it. The first one that is accepted ends
  the path, and p there is what the next token is drawn from. The root's weight stays 1.

Both are exact, as the ratio test is, and on a chain no exact rule accepts more tokens on average.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specbench.decode.acceptance import Uniforms, draw, residuals
from specbench.models.transfer import upload
from specbench.types import ROOT


class BlockTest:
    """The verification of one draft: on the device for every node and every end of the path, then followed on the host.

    No weight depends on a test's outcome, and the order of the tests is fixed. So the host reads once.
    """

    def __init__(self, parents: Sequence[int], passenger: Sequence[bool] | None, rows: int) -> None:
        """parents, passenger: (N,) of the draft. rows: the target's, N + 1; a last node behind them has none."""
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
        """(N + 1,) weights of root and nodes, all their children rejected; (rows, V) the distributions there; float64.

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

    def compute(self, distributions: Tensor, tokens: Tensor, probs: Tensor, uniforms: Uniforms) -> Tensor:
        """(N + rows,) float64: 1 where a node is accepted if it is tested; the token drawn behind each row.

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
        """(the accepted path, the token drawn behind it, None behind a node without a row of the target's).

        judged: of ``compute``. uniforms: the numbers of the tests on the path, and of the draw, count as used.
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
