"""Token Recycling (Luo et al. 2025, "Turning Trash into Treasure"): a matrix of every token's last
top-k successors.

Each forward computes a distribution at every node, rejected ones too; their top-k are written back
as the candidates of the node's token, and the next draft fills a static tree from them breadth
first (section 3; the template of 80 nodes is the authors' code's,
`docs/methods/token_recycling.md`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from methods.parts.parameters import Parameters, count
from methods.parts.recycling import RecyclingMatrix, Update
from methods.parts.tree_shape import SHARES, TreeShape
from specbench.method import Drafter, Method
from specbench.models.facade import ModelCard, Target
from specbench.types import (
    MOST,
    ROOT,
    Draft,
    InputError,
    Needs,
    Prefill,
    Step,
    require_count,
    require_nodes,
)

# github.com/Luowaterbi/TokenRecycling, model/recycling/tree_template.py: 80 nodes on 6 levels
REFERENCE = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    (2, 0, 0, 1, 0, 0, 0, 0),
)

Path = tuple[int, ...]  # a node as the ranks on the way to it


def reference_tree(nodes: int, depth: int, width: int) -> TreeShape:
    """The reference's tree brought to ``nodes`` nodes on exactly ``depth`` levels.

    Taken in this order: the path of rank 0 down to ``depth``; the reference's nodes; all others.
    Within each the likely ones first: a node is worth the product of its ranks' ``SHARES``, the
    reference's own estimate of what a rank is worth (ranks beyond have share 1); of equal ones the
    shallower, then the lower ranks. A parent is worth more than its children and a rank no less
    than the next, so every beginning of that order is a tree. width: the most children a node may
    have. Raises InputError.
    """
    if nodes < depth or depth < 1:
        raise InputError(
            f"nodes={nodes}: expected at least depth={depth} nodes and 1 level, one node a level"
        )
    known: list[Path] = []  # the reference's nodes
    reference = TreeShape.from_counts(REFERENCE, len(SHARES))
    for parent, rank in zip(reference.parents, reference.ranks, strict=True):
        known.append((*(() if parent == ROOT else known[parent]), rank))

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
        raise InputError(
            f"nodes={nodes}: with depth={depth} and {width} candidates a node, a tree has at most"
            f" {len(chosen)} nodes"
        )
    ordered = sorted(chosen, key=lambda path: (len(path), path))
    place = {(): ROOT} | {path: node for node, path in enumerate(ordered)}
    return TreeShape.of([place[path[:-1]] for path in ordered])


class _Recycler(Drafter):
    def __init__(self, matrix: RecyclingMatrix) -> None:
        self._matrix = matrix

    def propose(self, context: Sequence[int], budget: int) -> Draft:
        return self._matrix.draft(context[-1], budget)

    def observe(self, step: Step) -> None:
        if step.fed is not None and step.topk is not None:
            self._matrix.learn(step.fed, step.topk)


@dataclass(eq=False)
class TokenRecycling(Parameters, Method):
    """Token Recycling; conf/method/token_recycling.yaml describes the parameters."""

    learned = ("matrix",)

    nodes: int = count(80)
    depth: int = count(6)
    k: int = count(8)
    update: Update = "last"
    update_from_prefill: bool = False
    tree: list[list[int]] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tree is None:
            self.shape, self._given = (
                reference_tree(self.nodes, self.depth, self.k),
                f"nodes={self.nodes}",
            )
        else:
            self.shape, self._given = TreeShape.from_counts(self.tree, self.k), "tree"

    @property
    def needs(self) -> Needs:
        return Needs(node_topk=self.k, prompt_topk=self.k if self.update_from_prefill else 0)

    def check(self, model: ModelCard) -> None:
        """No more tokens can be candidates than there are."""
        require_count("k", self.k, high=min(MOST, model.vocab_size))

    def bind(self, target: Target) -> None:
        require_nodes(self._given, len(self.shape), target.max_nodes)
        self.matrix = RecyclingMatrix(
            self.shape, self.k, self.update, target.vocab_size, target.device
        )

    def reset(self) -> None:
        """A cold matrix: every token's candidates are token 0, as in the reference."""
        self.matrix.clear()

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        """Learn what follows the last prompt token, as the reference's first forward does, or every
        prompt token.

        Where that token is given, its row comes with the first step.
        Prompt row i of ``prefill.topk`` holds what follows prompt token i.
        """
        if prefill.topk is not None and (self.update_from_prefill or not prefill.given):
            learned = prompt if self.update_from_prefill else prompt[-1:]
            self.matrix.learn_prompt(learned, prefill.topk)
        return _Recycler(self.matrix)

    def state_bytes(self) -> int:
        return self.matrix.nbytes()
