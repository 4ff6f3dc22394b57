"""SpecInfer's token tree (Miao et al. 2024): an expansion configuration gives the children of each depth.

Children are drawn from the draft's distribution independently, so siblings may repeat a token; the walker tries each
of them by that distribution (multi-step speculative sampling). At temperature 0 they are the draft's best tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from methods.parts.fixed_tree import FixedTreeMethod
from specbench.types import MOST, ROOT, InputError


class SpecInfer(FixedTreeMethod):
    """SpecInfer.

    draft: hub id or folder of the draft model. expansion: children of every node, by depth, the root's first.
    dtype, device: of the draft; default the target's. draft_temperature: at which the draft samples; None = as the
    request does.
    """

    replace = True

    def __init__(
        self,
        draft: str | None,
        expansion: list[int],
        draft_temperature: float | None = None,
        dtype: str | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(draft, dtype, device, draft_temperature)
        if not expansion or min(expansion) < 1:
            raise InputError(f"expansion={expansion}: expected a list of whole numbers of at least 1, one a depth")
        if sum(accumulate(expansion, mul)) > MOST:
            raise InputError(f"expansion={expansion}: makes more than {MOST} nodes; expected a smaller tree")
        self.expansion = expansion
        self.plant(parents_of_widths(expansion), f"expansion={expansion}")


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
