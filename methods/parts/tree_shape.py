"""Children of the nodes of a level, drawn without replacement from the distribution behind each node."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from specbench.models.tree import compute_depths
from specbench.types import ROOT, InputError

REFERENCE = (  # github.com/Luowaterbi/TokenRecycling, model/recycling/tree_template.py: 80 nodes on 6 levels
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    (2, 0, 0, 1, 0, 0, 0, 0),
)
SHARES = (49, 10, 6, 5, 3, 3, 2, 2)  # how many of its 80 nodes stand at or below the root's child of each rank

Path = tuple[int, ...]  # a node as the ranks on the way to it


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth.

    start: number of the first one.
    rows: of each node, the row of its parent among the inner nodes of the level above.
    ranks: of each node among its siblings, from 0.
    inner: places in this level of the nodes that have children.
    above: of each inner node, its parent's number among all inner nodes (``ROOT`` for none); these are numbered level
        by level.
    """

    start: int
    rows: tuple[int, ...]
    ranks: tuple[int, ...]
    inner: tuple[int, ...]
    above: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree of N nodes, level by level.

    parents, ranks: (N,) of the nodes. levels: one a depth. inner: node -> its number among the inner nodes.
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
    def from_counts(cls, counts: Sequence[Sequence[int]], width: int, key: str = "tree") -> TreeShape:
        """The shape with these child counts, level by level, node by node. width: the most children a node may have.

        ``[[2], [2, 1], [0, 0, 0]]``: the root has two children, the first of them two, the second one: five nodes.
        Raises InputError naming ``key``.
        """
        parents: list[int] = []
        above = [ROOT]
        for depth, level in enumerate(counts):
            if len(level) != len(above):
                raise InputError(
                    f"{key}: level {depth} lists {len(level)} nodes; expected {len(above)}, one a node there"
                )
            if any(not 0 <= count <= width for count in level):
                raise InputError(f"{key}: level {depth} is {list(level)}; expected child counts from 0 to {width}")
            start = len(parents)
            parents += [node for node, count in zip(above, level, strict=True) for _ in range(count)]
            above = list(range(start, len(parents)))
        if not parents:
            raise InputError(f"{key}: no node; expected at least one child of the root")
        return cls.of(parents)

    @classmethod
    def sized(cls, nodes: int, depth: int, width: int) -> TreeShape:
        """The reference's tree brought to ``nodes`` nodes on exactly ``depth`` levels.

        Taken in this order: the path of rank 0 down to ``depth``; the reference's nodes; all others. Within each the
        likely ones first: a node is worth the product of its ranks' ``SHARES``, the reference's own estimate of what a
        rank is worth (ranks beyond have share 1); of equal ones the shallower, then the lower ranks. A parent is worth
        more than its children and a rank no less than the next, so every beginning of that order is a tree. width: the
        most children a node may have. Raises InputError.
        """
        if nodes < depth or depth < 1:
            raise InputError(f"nodes={nodes}: expected at least depth={depth} nodes and 1 level, one node a level")
        known = set(cls.from_counts(REFERENCE, len(SHARES)).paths())

        def order(path: Path) -> tuple[bool, bool, Fraction, int, Path]:
            shares = (SHARES[rank] if rank < len(SHARES) else 1 for rank in path)
            worth = Fraction(math.prod(shares), len(known) ** len(path))
            return any(path), path not in known, -worth, len(path), path

        waiting = [order((0,))]
        chosen: list[Path] = []
        while waiting and len(chosen) < nodes:
            path = heapq.heappop(waiting)[-1]
            chosen.append(path)
            if len(path) < depth:
                heapq.heappush(waiting, order((*path, 0)))
            if path[-1] + 1 < width:
                heapq.heappush(waiting, order((*path[:-1], path[-1] + 1)))
        if len(chosen) < nodes:
            raise InputError(f"nodes={nodes}: only {len(chosen)} fit on {depth} levels of {width} candidates a node")
        ordered = sorted(chosen, key=lambda path: (len(path), path))
        place = {(): ROOT} | {path: node for node, path in enumerate(ordered)}
        return cls.of([place[path[:-1]] for path in ordered])

    def paths(self) -> list[Path]:
        """Every node as the ranks on the way to it."""
        found: list[Path] = []
        for parent, rank in zip(self.parents, self.ranks, strict=True):
            found.append((*(() if parent == ROOT else found[parent]), rank))
        return found

    def cut(self, nodes: int) -> TreeShape:
        """The shape of the first ``nodes`` nodes, or of all of them."""
        return self if nodes >= len(self) else TreeShape.of(self.parents[:nodes])


class ShapePlan:
    """A fixed tree's index tensors on a device, made once."""

    def __init__(self, shape: TreeShape, device: torch.device) -> None:
        """shape: nodes level by level."""
        self.shape, self._device = shape, device
        self._cuts: dict[int, ShapePlan] = {}
        self.levels = [
            tuple(
                torch.tensor(part, device=device, dtype=torch.long) for part in (level.rows, level.ranks, level.inner)
            )
            for level in shape.levels
        ]
        self.most = [max(level.ranks) + 1 for level in shape.levels]

    def cut(self, nodes: int) -> ShapePlan:
        """The plan of the first ``nodes`` nodes, kept for the next call, or this one if there are no more."""
        if nodes >= len(self.shape):
            return self
        if nodes not in self._cuts:
            self._cuts[nodes] = ShapePlan(self.shape.cut(nodes), self._device)
        return self._cuts[nodes]


def parents_of_widths(widths: Sequence[int]) -> list[int]:
    """Parents of the tree in which every node of depth d has ``widths[d]`` children (the root has depth 0).

    ``parents_of_widths([2, 1])`` -> ``[-1, -1, 0, 1]``.
    """
    parents: list[int] = []
    level = [ROOT]
    for width in widths:
        start = len(parents)
        parents += [node for node in level for _ in range(width)]
        level = list(range(start, len(parents)))
    return parents


def find_best_shape(nodes: int, depth: int, acceptance: Sequence[float]) -> tuple[list[int], float]:
    """Parents of the tree with the most expected tokens a step, and their number, the target's own token included.

    nodes, depth: at most. acceptance: at a node that was reached, the chance that its first, second, ... child is the
    one that is accepted (Sequoia's positional acceptance). Dynamic programming over (depth, children, nodes).
    """
    size = nodes + 1  # of a subtree, its own root included
    whole = np.full((depth + 1, size + 1), -np.inf)  # best subtree of exactly that many nodes, at most that deep
    whole[:, 1] = 1.0
    wide = np.zeros((depth + 1, size + 1), dtype=int)  # its children
    split = np.zeros((depth + 1, len(acceptance) + 1, size + 1), dtype=int)  # nodes before the last child's own
    for level in range(1, depth + 1):
        known = np.full(size + 1, -np.inf)
        known[1] = 1.0  # no child
        for child, chance in enumerate(acceptance, 1):
            below = whole[level - 1]
            subtree = np.multiply(chance, below, out=np.full(size + 1, -np.inf), where=np.isfinite(below))
            known, split[level, child] = _with_child(known, subtree)
            better = known > whole[level]
            whole[level, better], wide[level, better] = known[better], child
    best = int(np.argmax(whole[depth]))
    return _unfold(depth, best, wide, split), float(whole[depth, best])


def _with_child(known: np.ndarray, subtree: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Max over y of known[y] + subtree[m - y], for every m; and the y of each."""
    size = len(known)
    index = np.arange(size)
    gap = index[None, :] - index[:, None]  # [y, m]
    total = known[:, None] + np.where(gap > 0, subtree[np.clip(gap, 0, None)], -np.inf)
    return total.max(0), total.argmax(0)


def _unfold(depth: int, size: int, wide: np.ndarray, split: np.ndarray) -> list[int]:
    """The tree behind the tables, level by level."""
    parents: list[int] = []
    waiting = deque([(ROOT, depth, size)])
    while waiting:
        node, level, left = waiting.popleft()
        sizes: list[int] = []
        for child in range(int(wide[level, left]), 0, -1):
            before = int(split[level, child, left])
            sizes.append(left - before)
            left = before
        for part in reversed(sizes):
            waiting.append((len(parents), level - 1, part))
            parents.append(node)
    return parents


TINY = 1e-30  # keeps a divisor off zero


def race(probs: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Tokens drawn one after the other without replacement, ``count`` from each row (all of them where V is less).

    Exponential race: tokens by decreasing probability / Exp(1) come in the order in which they would be drawn.

    probs: (m, V) probabilities.
    Returns tokens (m, count) int64, and alive (m, count) bool: whether each token had any probability left.
    """
    times = torch.empty_like(probs).exponential_(generator=generator).clamp_(min=TINY)
    best = (probs / times).topk(min(count, probs.shape[-1]), dim=-1)
    return best.indices, best.values > 0


def without_earlier(probs: Tensor, siblings: Tensor, ranks: Tensor) -> Tensor:
    """What each of n nodes is drawn from when its earlier siblings are taken already.

    probs: (n, V) probabilities behind its parent.
    siblings: (n, c) tokens drawn from them, itself and its siblings in order; ranks: (n,) its own place among them.
    Returns (n, V) probabilities.
    """
    later = torch.arange(siblings.shape[1], device=ranks.device) >= ranks[:, None]
    left = probs.scatter(1, siblings, probs.gather(1, siblings) * later)
    return left / left.sum(-1, keepdim=True).clamp_(min=TINY)


def draw_children(
    probs: Tensor, rows: Tensor, ranks: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """The n nodes of a level, each the ``ranks``-th token drawn from its parent's row.

    probs: (m, V) probabilities behind each parent.
    rows, ranks: (n,) int64, of each node its parent's row and its place among its siblings.
    count: the most children of a parent.
    Returns tokens (n,) int64; given (n, V), what each was drawn from given its earlier siblings; and alive (n,) bool,
    whether each token had any probability left.
    """
    drawn, alive = race(probs, count, generator)
    return drawn[rows, ranks], without_earlier(probs[rows], drawn[rows], ranks), alive[rows, ranks]
