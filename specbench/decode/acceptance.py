"""Acceptance by the target's whole distribution: the ratio test for drafts that were drawn, and two
lossy rules.

Ratio test: at a node with distribution p its children are tried in order. A child x drawn from q
(given its earlier siblings) is accepted with probability min(1, p(x) / q(x)); after a rejection p
becomes the residual max(p - q, 0), normalised. The token after the last accepted node is drawn from
the remaining p. Exact for chains (Leviathan et al. 2023, algorithm 1), for siblings drawn with
replacement (Miao et al. 2024, SpecInfer), q staying the same, and without (Chen et al. 2024,
Sequoia), q losing the earlier siblings: they differ only in the q that the draft states.

Lossy rules accept a node where its parent is accepted and the node is likely enough there. Typical
acceptance (Cai et al. 2024, Medusa, section 3.3.2): its probability exceeds min(threshold, alpha *
exp(-entropy)). Relaxed acceptance (TensorRT-LLM, ``relaxed_topk`` and ``relaxed_delta``): it is one
of the likeliest tokens, and not much less likely than the best one. The deepest node wins, among
equally deep ones that of the likeliest path. The report lists such rows in a separate table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specbench.models.transfer import upload
from specbench.models.verify import find_accepted_path
from specbench.types import ROOT, InputError, Lossy, Relaxed, Typical


def make_rule(accept: str, temperature: float, typical: Typical, relaxed: Relaxed) -> Lossy | None:
    """The lossy rule of ``decode.accept``, None if it is exact. Raises InputError for a typical one
    when greedy.
    """
    if accept == "typical" and not temperature > 0:
        raise InputError(
            "decode.accept=typical: its bar follows the entropy of sampling; expected"
            " decode.temperature above 0, or decode.accept=relaxed"
        )
    return {"exact": None, "typical": typical, "relaxed": relaxed}[accept]


class Uniforms:
    """A stream of uniform numbers that can be read ahead. used: how many of them have been used."""

    def __init__(self, generator: np.random.Generator) -> None:
        """generator: of the stream."""
        self._generator = generator
        self._numbers: list[float] = []
        self.used = 0

    def ahead(self, places: Sequence[int]) -> list[float]:
        """The numbers at these places, 0 = the next one."""
        while len(self._numbers) <= self.used + max(places):
            self._numbers.append(float(self._generator.random()))
        return [self._numbers[self.used + place] for place in places]


def draw(distributions: Tensor, numbers: Tensor) -> Tensor:
    """(rows,) a token of each row, by its cumulative sum.

    distributions: (rows, V).
    numbers: (rows,) or (1,) float64 uniform numbers.
    """
    below = distributions.double().cumsum(-1)
    at = (numbers * below[:, -1])[:, None]
    return torch.searchsorted(below, at, right=True)[:, 0].clamp_(max=below.shape[-1] - 1)


class RatioTest:
    """The ratio test of one draft: on the device for every node and every end of the path, then
    followed on the host.

    What a node is tested with is known before any outcome is: its parent's distribution behind the
    rejection of its earlier siblings, and which of the stream's numbers it would use. So the host
    reads once.
    """

    def __init__(self, parents: Sequence[int], passenger: Sequence[bool] | None, rows: int) -> None:
        """parents, passenger: (N,) of the draft. rows: the target's, N + 1; a last node behind them
        has none.
        """
        self._parents = parents
        self._children: dict[int, list[int]] = {}
        self._ranks: list[list[int]] = []  # the nodes that are a first child, a second one ...
        self._numbers = [0] * len(parents)  # which number a node uses, where it is reached
        first = {ROOT: 0}  # of the numbers used below a place
        for node, parent in enumerate(parents):
            if passenger is not None and passenger[node]:
                continue
            siblings = self._children.setdefault(parent, [])
            if len(siblings) == len(self._ranks):
                self._ranks.append([])
            self._ranks[len(siblings)].append(node)
            self._numbers[node] = first.get(parent, 0) + len(siblings)
            first[node] = self._numbers[node] + 1
            siblings.append(node)
        self._ends = [
            first.get(place, 0) + len(self._children.get(place, ()))
            for place in range(ROOT, rows - 1)
        ]

    def compute(
        self, distributions: Tensor, tokens: Tensor, probs: Tensor, uniforms: Uniforms
    ) -> Tensor:
        """(N + rows,) float64: 1 where a node is accepted if it is tried; the token drawn where the
        path ends at a row.

        distributions: (rows, V) float32, the target's, row 0 the root's.
        tokens: (N,) int64, of the nodes.
        probs: (N, V) float32, the distribution each node was drawn from.
        """
        device = distributions.device
        nodes = [node for rank in self._ranks for node in rank]
        index = upload([nodes, [self._parents[node] + 1 for node in nodes]], device)
        numbers = uniforms.ahead([*(self._numbers[node] for node in nodes), *self._ends])
        trials, ends = upload(numbers, device, torch.float64).split([len(nodes), len(self._ends)])
        left = distributions.to(torch.float64, copy=True)
        untried, accepted = left.clone(), left.new_zeros(len(tokens))
        start = 0
        for rank in self._ranks:
            span = slice(start, start + len(rank))
            node, row = index[:, span]
            token, drawn, before = tokens[node][:, None], probs[node].double(), left[row]
            limit = trials[span] * drawn.gather(1, token)[:, 0]
            accepted[node] = (limit < before.gather(1, token)[:, 0]).double()
            untried[row] = untried[row].scatter(1, token, 0.0)
            left[row] = residuals(before, drawn, distributions[row].double(), untried[row])
            start = span.stop
        return torch.cat([accepted, draw(left, ends).double()])

    def follow(self, judged: Sequence[float], uniforms: Uniforms) -> tuple[list[int], int | None]:
        """(the accepted path, the token drawn behind it, None behind a node without a row of the
        target's).

        judged: of ``compute``. uniforms: the numbers of the tests on the path, and of the draw,
        count as used.
        """
        path: list[int] = []
        place = ROOT
        while True:
            for node in self._children.get(place, ()):
                uniforms.used += 1
                if judged[node]:
                    break
            else:
                break
            path.append(node)
            place = node
        if place + 1 >= len(self._ends):
            return path, None
        uniforms.used += 1
        return path, int(judged[len(self._parents) + place + 1])


def verify_one_by_one(
    distributions: Tensor,
    tokens: Sequence[int],
    parents: Sequence[int],
    passenger: Sequence[bool] | None,
    probs: Tensor,
    uniforms: Uniforms,
) -> tuple[list[int], int | None]:
    """Run the ratio test with tensors on a CPU: only on the nodes that are tried, since reading
    costs nothing there.

    distributions: (rows, V) float32, the target's, row 0 the root's.
    tokens, parents, passenger: (N,) of the draft.
    probs: (N, V) float32, the distribution each node was drawn from.
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        if passenger is None or not passenger[node]:
            children.setdefault(parent, []).append(node)
    path: list[int] = []
    place = ROOT
    while place + 1 < len(distributions):
        whole = left = distributions[place + 1].double()
        tried: list[int] = []
        for node in children.get(place, ()):
            token, drawn = tokens[node], probs[node].double()
            (limit,) = uniforms.ahead([0])
            uniforms.used += 1
            if limit * float(drawn[token]) < float(left[token]):
                break
            tried.append(token)
            left = _residual(left, drawn, whole, tried)
        else:
            number = torch.tensor(uniforms.ahead([0]), dtype=torch.float64)
            uniforms.used += 1
            return path, int(draw(left[None], number))
        path.append(node)
        place = node
    return path, None


def residuals(distribution: Tensor, drawn: Tensor, whole: Tensor, untried: Tensor) -> Tensor:
    """(rows, V) max(distribution - drawn, 0), normalised; where that is 0 by rounding, ``untried``,
    else ``whole``.
    """
    left = (distribution - drawn).clamp_(min=0)
    total, rest = left.sum(-1, keepdim=True), untried.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total, torch.where(rest > 0, untried / rest, whole))


def _residual(distribution: Tensor, drawn: Tensor, whole: Tensor, tried: Sequence[int]) -> Tensor:
    """(V,) of one row; ``tried``: the tokens that are 0 in ``untried``."""
    left = (distribution - drawn).clamp_(min=0)
    total = left.sum()
    if total > 0:
        return left / total
    left = whole.clone()
    left[list(tried)] = 0
    total = left.sum()
    return left / total if total > 0 else whole


def judge_lossy(
    distributions: Tensor, tokens: Tensor, parents: Sequence[int], rule: Lossy
) -> Tensor:
    """(2, N) float32: 1 where a lossy rule takes a node if it takes its parent; its log probability
    there.

    distributions: (N+1, V) float32, the target's, row 0 the root's.
    tokens: (N,) int64 and parents: (N,) of the draft.
    """
    logs = distributions.clamp_min(torch.finfo(distributions.dtype).tiny).log()
    above = upload([parent + 1 for parent in parents], distributions.device)
    own = distributions[above, tokens]
    if isinstance(rule, Typical):
        entropy = -(distributions * logs).sum(-1)
        likely = own > (rule.alpha * (-entropy).exp()).clamp_max(rule.threshold)[above]
    else:
        best = distributions.topk(min(rule.top, distributions.shape[-1])).values[above]
        # 0: cut by top-k or top-p
        likely = (own > 0) & (own >= best[:, -1]) & (own >= best[:, 0] - rule.delta)
    return torch.stack([likely.to(logs.dtype), logs[above, tokens]])


def follow_lossy(
    likely: Sequence[float],
    scores: Sequence[float],
    parents: Sequence[int],
    passenger: Sequence[bool] | None,
) -> list[int]:
    """The accepted path, root side first. likely, scores: of ``judge_lossy``."""
    return find_accepted_path(
        [int(each) for each in likely], parents, passenger, [1] * (len(parents) + 1), scores=scores
    )
