"""A draft tree of fixed shape that a draft model fills with one forward per level, for SpecInfer
and Sequoia.

At temperature 0 a node's children are the draft's best tokens. Above they are drawn, and the draft
states the distribution of each given its earlier siblings, so that the walker keeps the target's
distribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, zip_longest

import torch
from torch import Tensor

from methods.parts.draft_lm import DraftLM, draw_one
from methods.parts.draft_method import DrawingMethod, TargetTraits
from methods.parts.tree_shape import RANK_CHANCES, Level, ShapePlan, TreeShape, draw_children
from specbench.method import Drafter, Drafting, SharedDrafter
from specbench.models.facade import Target
from specbench.types import EMPTY, ROOT, Draft, InputError, Prefill, Step, require_nodes


class FixedTreeMethod(DrawingMethod):
    """A draft-model method whose tree has the same shape at every step. Subclasses call ``plant``.

    replace: siblings are drawn with replacement, and may repeat. chances: as of
    ``TreeShape.likeliest``.
    """

    draws = True
    replace = False
    chances: Sequence[float] = RANK_CHANCES

    def plant(self, shape: TreeShape, setting: str) -> None:
        """Take the tree's shape. setting: what the user would change to have fewer nodes. Raises
        InputError.
        """
        if not len(shape):
            raise InputError(
                f"{setting}: makes a tree without a node, which never drafts; expected at least one"
            )
        self._setting, self.shape = setting, shape

    def bind(self, target: Target) -> None:
        require_nodes(self._setting, len(self.shape), target.max_nodes)
        if max(self.shape.ranks, default=0) >= target.vocab_size:
            raise InputError(
                f"{self._setting}: a node has more children than there are {target.vocab_size}"
                " tokens"
            )
        super().bind(target)

    def adopt(self, lm: DraftLM, traits: TargetTraits) -> None:
        """As ``DraftModelMethod.adopt``; the shape goes to the draft's device, its levels are
        recorded.
        """
        super().adopt(lm, traits)
        self.plan = ShapePlan(self.shape, lm.device, self.chances)
        fed = [len(level.inner) for level in self.shape.levels if level.inner]
        lm.prepare(
            [(count, nodes, count) for count, nodes in zip(fed, accumulate(fed), strict=True)]
        )

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        return _FixedTree(self, seed)


class _FixedTree(SharedDrafter):
    def __init__(self, method: FixedTreeMethod, seed: int) -> None:
        self._method, self._request = method, method.tree()
        self._random = method.generator(seed)
        self._settled = 0
        self._shape = method.shape
        self._kept: Sequence[int] = ()  # of each proposed node, its number in the shape
        ranks = max(self._shape.ranks) + 1
        self._tried, self._taken = [0] * ranks, [0] * ranks

    def drafting(self, context: Sequence[int], budget: int) -> Drafting:
        plan = self._method.plan.cut(budget)
        shape = self._shape = plan.shape
        self._kept = range(len(shape))
        if not len(shape):
            return EMPTY
        rows = yield self._request.feeding(context, self._settled)
        self._settled = len(context)
        drawn = self._method.sampling is not None
        probs = rows.new_zeros(len(shape), rows.shape[-1], dtype=torch.float32) if drawn else None
        tokens: list[Tensor] = []
        alive: list[Tensor] = []  # of each level; empty where every node can be drawn
        for level, (row, rank, inner) in zip(shape.levels, plan.levels, strict=True):
            children, living = self._fill(rows, level, row, rank, probs)
            tokens.append(children)
            alive += living
            if level.inner:
                rows = yield self._request.expanding(children[inner], level.above)
        if probs is None:
            return Draft(torch.cat(tokens), shape.parents, source=[0] * len(shape))
        return self._living(
            torch.cat(tokens), torch.cat(alive).tolist() if alive else [True] * len(shape), probs
        )

    def _fill(
        self, rows: Tensor, level: Level, row: Tensor, rank: Tensor, probs: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """(m,) tokens of a level's nodes, and whether each could be drawn, if that is not certain.

        Their distributions go into ``probs``.

        row, rank: (m,) the level's, on the device.
        """
        count = max(level.ranks) + 1
        if probs is None:
            return rows.topk(count, dim=-1).indices[row, rank], []
        whole = self._method.drawn_from(rows)
        nodes = slice(level.start, level.start + len(row))
        if self._method.replace:
            if count > 1:
                drawn = torch.multinomial(whole, count, replacement=True, generator=self._random)
            else:  # for one token that waits for the device
                drawn = draw_one(whole, self._random)[:, None]
            probs[nodes] = whole[row]
            return drawn[row, rank], []
        drawn, probs[nodes], living = draw_children(whole, row, rank, count, self._random)
        return drawn, [living]

    def _living(self, tokens: Tensor, alive: list[bool], probs: Tensor) -> Draft:
        """The nodes that could be drawn: a distribution may have fewer tokens than a node has
        children.
        """
        parents = self._shape.parents
        place: dict[int, int] = {ROOT: ROOT}
        for node, parent in enumerate(parents):
            if alive[node] and parent in place:
                place[node] = len(place) - 1
        kept = self._kept = list(place)[1:]
        if len(kept) < len(parents):
            tokens, probs = tokens[kept], probs[kept]
        return Draft(
            tokens,
            [place[parents[node]] for node in kept],
            self._method.pad_probs(probs),
            source=[0] * len(kept),
        )

    def observe(self, step: Step) -> None:
        shape = self._shape
        path = [self._kept[node] for node in step.path]
        fed = [shape.inner[node] for node in path if node in shape.inner]
        self._request.commit(fed, step.emitted[: len(fed)])
        if step.done:  # the last path may have been cut
            return
        # which child was accepted, at every node that was reached
        parents, ranks = shape.parents, shape.ranks
        widths = Counter(parents[node] for node in self._kept)
        for node, child in zip_longest((ROOT, *path), path):
            for rank in range(widths[node]):
                self._tried[rank] += 1
            if child is not None:
                self._taken[ranks[child]] += 1

    def stats(self) -> dict[str, float]:
        """Share of the nodes reached with at least i children whose i-th child was accepted."""
        rates = enumerate(zip(self._taken, self._tried, strict=True), 1)
        return {f"accepted_child_{rank}": taken / tried for rank, (taken, tried) in rates if tried}
