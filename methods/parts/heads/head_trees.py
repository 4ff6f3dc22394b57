"""The fixed trees of the published heads, as child counts level by level (see ``TreeTemplate``)."""

from __future__ import annotations

from collections.abc import Sequence

from methods.parts.trees.tree_shape import TreeShape
from methods.parts.trees.tree_template import TreeTemplate

MEDUSA = (  # github.com/FasterDecoding/Medusa, medusa_choices.py, mc_sim_7b_63; Hydra uses the same: 63 nodes, 4 levels
    (10,),
    (10, 7, 3, 2, 1, 1, 1, 1, 1, 1),
    (10, 3, 2, 1, 1, 1, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1, *[0] * 10),
    (2, *[0] * 22),
)
EAGLE = (  # github.com/SafeAILab/EAGLE, choices.py, a tree of the same name: 25 nodes, 5 levels
    (4,),
    (3, 2, 2, 1),
    (3, 2, 2, 1, 0, 0, 0, 0),
    (3, 0, 0, 0, 0, 0, 0, 0),
    (2, 0, 0),
)


WIDEST = 64  # children of a node


def fixed_tree(
    counts: Sequence[Sequence[int]] | None, published: Sequence[Sequence[int]], key: str = "tree"
) -> TreeShape:
    """The tree of the setting ``key``, or the published one. Raises InputError."""
    return TreeShape.of(TreeTemplate.from_counts(counts if counts is not None else published, WIDEST, key).parents)
