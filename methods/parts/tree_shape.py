"""Draft trees whose shape is fixed before decoding: how many children each node gets, and the
drawing of children.

Nodes are listed level by level, siblings side by side, so any first part of a shape is a tree
again. A shape is given by its parents or by child counts. Within a budget, its likeliest nodes are
kept. Children of a level's nodes are drawn without replacement from the distribution after each
node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.models.tree import compute_depths
from specbench.types import MOST, ROOT, InputError

# How many of the 80 nodes of Token Recycling's tree are at or below the root's child of each rank,
# and so the chance that a child of that rank is accepted (github.com/Luowaterbi/TokenRecycling,
# model/recycling/tree_template.py).
SHARES = (49, 10, 6, 5, 3, 3, 2, 2)
RANK_CHANCES = tuple(share / sum(SHARES) for share in SHARES)


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth.

    start: number of the first one.
    rows: of each node, the row of its parent among the inner nodes of the level above.
    ranks: of each node among its siblings, from 0.
    inner: places in this level of the nodes that have children.
    above: of each inner node, its parent's number among all inner nodes (``ROOT`` for none); these
        are numbered level by level.
    """

    start: int
    rows: tuple[int, ...]
    ranks: tuple[int, ...]
    inner: tuple[int, ...]
    above: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree of N nodes, level by level.

    parents, ranks: (N,) of the nodes. levels: one a depth. inner: node -> its number among the
    inner nodes.
    """

    parents: tuple[int, ...]
    levels: tuple[Level, ...]
    inner: dict[int, int]
    ranks: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.parents)

    @classmethod
    def of(cls, parents: Sequence[int]) -> TreeShape:
        """The shape with these parents, which stand level by level."""
        number: dict[int, int] = {}  # of each inner node
        for parent in parents:
            if parent != ROOT and parent not in number:
                number[parent] = len(number)
        ranks = [0] * len(parents)
        for node in range(1, len(parents)):
            ranks[node] = ranks[node - 1] + 1 if parents[node] == parents[node - 1] else 0
        depths = compute_depths(parents)
        levels: list[Level] = []
        row = {ROOT: 0}  # of each inner node of the level above
        for depth in range(1, max(depths, default=0) + 1):
            nodes = [node for node, at in enumerate(depths) if at == depth]
            inner = [node for node in nodes if node in number]
            levels.append(
                Level(
                    nodes[0],
                    tuple(row[parents[node]] for node in nodes),
                    tuple(ranks[node] for node in nodes),
                    tuple(node - nodes[0] for node in inner),
                    tuple(number.get(parents[node], ROOT) for node in inner),
                )
            )
            row = {node: place for place, node in enumerate(inner)}
        return cls(tuple(parents), tuple(levels), number, tuple(ranks))

    @classmethod
    def from_counts(
        cls, counts: Sequence[Sequence[int]], width: int, key: str = "tree"
    ) -> TreeShape:
        """The shape with these child counts, level by level, node by node. width: the most children
        a node may have.

        ``[[2], [2, 1], [0, 0, 0]]``: the root has two children, the first of them two, the second
        one: five nodes. Raises InputError naming ``key``.
        """
        parents: list[int] = []
        above = [ROOT]
        for depth, level in enumerate(counts):
            if len(level) != len(above):
                raise InputError(
                    f"{key}: level {depth} lists {len(level)} nodes; expected {len(above)}, one a"
                    " node there"
                )
            if any(not 0 <= count <= width for count in level):
                raise InputError(
                    f"{key}: level {depth} is {list(level)}; expected child counts from 0 to"
                    f" {width}"
                )
            start = len(parents)
            parents += [
                node for node, count in zip(above, level, strict=True) for _ in range(count)
            ]
            above = list(range(start, len(parents)))
            if len(parents) > MOST:
                raise InputError(
                    f"{key}: more than {MOST} nodes by level {depth}; expected a smaller tree"
                )
        if not parents:
            raise InputError(f"{key}: no node; expected at least one child of the root")
        return cls.of(parents)

    def likeliest(self, nodes: int, chances: Sequence[float] = RANK_CHANCES) -> list[int]:
        """The ``nodes`` nodes with the likeliest paths, in ascending order. No child is likelier
        than its parent.

        chances: of a child by its rank, ranks beyond as the last (Sequoia's positional acceptance,
        arXiv 2402.12374).
        """
        reached: list[float] = []
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            own = chances[min(rank, len(chances) - 1)]
            reached.append(own if parent == ROOT else own * reached[parent])
        return sorted(sorted(range(len(self)), key=lambda node: -reached[node])[:nodes])

    def part(self, nodes: Sequence[int]) -> TreeShape:
        """The shape of some nodes, in ascending order; with a node, its parent must be among
        them.
        """
        place = {node: number for number, node in enumerate(nodes)} | {ROOT: ROOT}
        return TreeShape.of([place[self.parents[node]] for node in nodes])


class ShapePlan:
    """A fixed tree's index tensors on a device, made once."""

    def __init__(
        self, shape: TreeShape, device: torch.device, chances: Sequence[float] = RANK_CHANCES
    ) -> None:
        """shape: nodes level by level. chances: by which it is cut, as of
        ``TreeShape.likeliest``.
        """
        self.shape, self._device, self._chances = shape, device, chances
        self._cuts: dict[int, ShapePlan] = {}
        self.levels = [
            tuple(
                torch.tensor(part, device=device, dtype=torch.long)
                for part in (level.rows, level.ranks, level.inner)
            )
            for level in shape.levels
        ]
        self.most = [max(level.ranks) + 1 for level in shape.levels]

    def cut(self, nodes: int) -> ShapePlan:
        """The plan of the ``nodes`` likeliest nodes, kept for the next call, or this one if there
        are no more.
        """
        if nodes >= len(self.shape):
            return self
        if nodes not in self._cuts:
            kept = self.shape.likeliest(nodes, self._chances)
            self._cuts[nodes] = ShapePlan(self.shape.part(kept), self._device)
        return self._cuts[nodes]


TINY = 1e-30  # keeps a divisor off zero


def race(probs: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens drawn one after the other without replacement, ``count`` from each row (all of them
    where V is less).

    Exponential race: tokens by decreasing probability / Exp(1) come in the order in which they
    would be drawn.

    probs: (m, V) probabilities.
    Returns tokens (m, count) int64, and alive (m, count) bool: whether each token had any
    probability left.
    """
    times = torch.empty_like(probs).exponential_(generator=generator).clamp_(min=TINY)
    best = (probs / times).topk(min(count, probs.shape[-1]), dim=-1)
    return best.indices, best.values > 0


def without_earlier(probs: Tensor, siblings: Tensor, ranks: Tensor) -> Tensor:
    """Returns the distributions from which n nodes are drawn when their earlier siblings are taken
    already.

    probs: (n, V) probabilities after its parent.
    siblings: (n, c) tokens drawn from them, itself and its siblings in order; ranks: (n,) its own
    place among them. Returns (n, V) probabilities.
    """
    later = torch.arange(siblings.shape[1], device=ranks.device) >= ranks[:, None]
    left = probs.scatter(1, siblings, probs.gather(1, siblings) * later)
    return left / left.sum(-1, keepdim=True).clamp_(min=TINY)


def draw_children(
    probs: Tensor, rows: Tensor, ranks: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """The n nodes of a level, each the ``ranks``-th token drawn from its parent's row.

    probs: (m, V) probabilities after each parent.
    rows, ranks: (n,) int64, of each node its parent's row and its place among its siblings.
    count: the most children of a parent.
    Returns tokens (n,) int64; given (n, V), what each was drawn from given its earlier siblings;
    and alive (n,) bool, whether each token had any probability left.
    """
    drawn, alive = race(probs, count, generator)
    return drawn[rows, ranks], without_earlier(probs[rows], drawn[rows], ranks), alive[rows, ranks]
