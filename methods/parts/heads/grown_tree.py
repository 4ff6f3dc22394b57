"""Trees that a head grows: of a fixed shape with its best or drawn tokens, or of the shape that its probabilities give.

The dynamic tree (EAGLE-2, Li et al. 2024, section 4): expand the best nodes of each level by the product of the head's
probabilities along their path, then keep the best of all candidates. That product cannot rise along a path, and equal
ones are taken shallower first, so that no node is kept without its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

import torch
from torch import Tensor

from methods.parts.heads.forwards import Forwards
from methods.parts.trees.siblings import draw_children
from methods.parts.trees.tree_shape import ShapePlan
from specbench.method import Drafting, DraftLevel, GoesOn
from specbench.types import Draft


class Growing(Protocol):
    """A head's place in a request (``EagleRun``). ready: all levels are there with the root's."""

    ready: bool

    def root(self) -> Forwards:
        """(1, Vd) logits of what follows the root."""

    def expand(self, ids: Tensor, rows: Tensor) -> Forwards:
        """(w, Vd) logits below w nodes, whose parents are ``rows`` of the last call."""

    def chances(self, ids: Tensor | None) -> Tensor | None:
        """(w,) that a token below each of w nodes (w,), None = the root, is accepted; None where no head says so."""

    def ids(self, choice: Tensor) -> Tensor:
        """The head's ids -> the target's."""

    def spread(self, logits: Tensor) -> Tensor:
        """(w, Vd) -> (w, V)."""


def log_probs(logits: Tensor) -> Tensor:
    """Log probabilities in at least single precision."""
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def grow(run: Growing, top_k: int, depth: int, nodes: int, goes_on: GoesOn | None = None) -> Drafting:
    """The dynamic tree: ``depth`` times the ``top_k`` best nodes of a level are expanded, the best ``nodes`` kept.

    goes_on: see ``Drafter``.
    """
    depth = min(depth, nodes - 1)  # deeper ones cannot all be kept
    laws = log_probs((yield from run.root()))
    law, (logs, choice) = laws[0], laws.topk(min(top_k, nodes))
    ids, scores, steps = run.ids(choice)[0], logs[0], logs[0]
    rows = torch.zeros_like(ids)
    parents = torch.full_like(ids, -1)  # of candidates, numbered level by level
    kept = [(ids, scores, steps, parents)]
    numbers, start = torch.arange(len(ids), device=ids.device), len(ids)
    for level in range(depth):
        if goes_on and not goes_on(DraftLevel(level + 1, scores[0].exp(), law.exp())):
            break
        laws = log_probs((yield from run.expand(ids, rows)))
        logs, choice = laws.topk(top_k)
        below = (scores[:, None] + logs).view(-1)
        kept.append((run.ids(choice).view(-1), below, logs.view(-1), numbers.repeat_interleave(top_k)))
        if level < depth - 1:
            scores, place = below.topk(min(top_k, len(below)))
            ids, rows, numbers = kept[-1][0][place], place // top_k, place + start
            law = laws[rows[0]]
            start += len(below)
    return _best([torch.cat(parts) for parts in zip(*kept, strict=True)], nodes, depth + 1)


def _best(candidates: list[Tensor], nodes: int, depth: int) -> Draft:
    """The best of C candidates in level order, as a draft.

    candidates: ids (C,) int64, log probabilities of their paths (C,) and their own (C,), parents (C,) int64.
    depth: levels of them.
    """
    ids, scores, steps, parents = candidates
    order = torch.sort(scores, descending=True, stable=True).indices  # of equal ones the shallower first
    chosen = torch.sort(order[:nodes]).values
    above = torch.searchsorted(chosen, parents[chosen])  # of the root's children 0, corrected below
    above = torch.where(parents[chosen] < 0, -1, above)
    if above.device.type != "cpu":  # there the engine lays the tree out
        return Draft(ids[chosen], above, source=[0] * len(chosen), depth=depth)
    hosted = torch.stack([above.double(), steps[chosen].exp().double()]).tolist()
    return Draft(ids[chosen], [int(parent) for parent in hosted[0]], score=hosted[1], source=[0] * len(chosen))


class NodeChoice(Protocol):
    """What fills the nodes of a level."""

    def __call__(self, logits: Tensor, rows: Tensor, ranks: Tensor, most: int) -> Tensor:
        """(n,) ids of nodes of these ranks below rows of ``logits`` (w, Vd); most: children of a node."""

    def law(self, logits: Tensor, rows: Tensor) -> Tensor:
        """(n, V) the distributions of the nodes chosen last."""


Filled = Generator[Any, Any, tuple[Tensor, Tensor | None]]  # tokens (N,), and the chances (N,) that a head states


def fill(run: Growing, plan: ShapePlan, choose: NodeChoice, goes_on: GoesOn | None = None) -> Filled:
    """Fill a tree of fixed shape, level by level: tokens (N,) int64, and ``run.chances`` of each (N,) or None.

    goes_on: see ``Drafter``; levels that it cuts are not filled.
    """
    logits = yield from run.root()
    chances = run.chances(None)
    filled: list[Tensor] = []
    stated: list[Tensor] = []
    reach = logits.new_ones(1)
    for (rows, ranks, inner), most in zip(plan.levels, plan.most, strict=True):
        filled.append(choose(logits, rows, ranks, most))
        if chances is not None:
            stated.append(chances[rows])
        chances = run.chances(filled[-1][inner]) if len(inner) else None
        if goes_on:
            law = choose.law(logits, rows)
            reach = reach[rows] * (stated[-1] if stated else law.gather(1, filled[-1][:, None])[:, 0])
            best, following = _likeliest(reach, inner, chances)
            if not goes_on(DraftLevel(len(filled), reach[best], law[best], run.ready, following)):
                break
            reach = reach[inner]
        if len(inner):
            logits = yield from run.expand(filled[-1][inner], rows[inner])
    return torch.cat(filled), torch.cat(stated) if stated else None


def _likeliest(reach: Tensor, inner: Tensor, chances: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The node of a level whose path goes on likeliest, and the chance that it does where a head states that."""
    if chances is None:
        return reach.argmax(), None
    place = (reach[inner] * chances).argmax()
    return inner[place], chances[place]


class BestChoice:
    """A node of rank r holds its parent's r-th best token."""

    def __init__(self, run: Growing) -> None:
        self._run = run

    def __call__(self, logits: Tensor, rows: Tensor, ranks: Tensor, most: int) -> Tensor:
        return self._run.ids(logits.topk(most).indices)[rows, ranks]

    def law(self, logits: Tensor, rows: Tensor) -> Tensor:
        return log_probs(self._run.spread(logits)).exp()[rows]


class DrawnChoice:
    """Children drawn from the request's distribution over the head's logits, siblings without replacement.

    probs: one (n, V) tensor a level, the distribution of each node given its earlier siblings. Where nothing is left to
        draw, any token is taken, with probability 1: such a node is verified like a chosen one.
    """

    def __init__(self, run: Growing, sampling: Callable[[Tensor], Tensor], random: torch.Generator) -> None:
        self._run, self._sampling, self._random = run, sampling, random
        self.probs: list[Tensor] = []

    def __call__(self, logits: Tensor, rows: Tensor, ranks: Tensor, most: int) -> Tensor:
        tokens, given, alive = draw_children(self._sampling(self._run.spread(logits)), rows, ranks, most, self._random)
        certain = torch.zeros_like(given).scatter_(1, tokens[:, None], 1.0)
        self.probs.append(torch.where(alive[:, None], given, certain))
        return tokens

    def law(self, logits: Tensor, rows: Tensor) -> Tensor:
        return self.probs[-1]
