"""Sequoia's token tree (Chen et al. 2024): the shape with the most expected tokens, children without replacement.

How likely the first, second, ... child of a node is the one accepted hardly depends on the node; with these rates,
measured beforehand, dynamic programming finds the best tree of a size. Siblings differ, so no trial is wasted.
"""

from __future__ import annotations

from methods.parts.fixed_tree import FixedTreeMethod
from methods.parts.tree_shape import find_best_shape
from specbench.types import MOST, InputError, require_count


class Sequoia(FixedTreeMethod):
    """draft: hub id or folder of the draft model. nodes, depth: of the tree, at most.

    acceptance: at a node that was reached, the chance that its first, second, ... child is the one accepted. dtype,
    device: of the draft; default the target's. draft_temperature: at which the draft samples;
    None = as the request does.
    """

    def __init__(
        self,
        draft: str | None,
        acceptance: list[float],
        nodes: int = 64,
        depth: int = 8,
        draft_temperature: float | None = None,
        dtype: str | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(draft, dtype, device, draft_temperature)
        require_count("nodes", nodes, high=MOST)
        require_count("depth", depth, high=MOST)
        if not acceptance or min(acceptance) < 0 or not 0 < sum(acceptance) <= 1.001:
            raise InputError(
                f"acceptance={acceptance}: expected chances of a node's first, second, ... child, at least 0 each,"
                " together more than 0 and at most 1"
            )
        self.acceptance, self.nodes, self.depth = acceptance, nodes, depth
        parents, self.expected = find_best_shape(nodes, min(depth, nodes), acceptance)
        self.plant(parents, f"nodes={nodes}")
