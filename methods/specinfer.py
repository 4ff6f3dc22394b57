"""SpecInfer's token tree (Miao et al. 2024): an expansion configuration gives the children of each depth.

Children are drawn from the draft's distribution independently, so siblings may repeat a token; the walker tries each
of them by that distribution (multi-step speculative sampling). At temperature 0 they are the draft's best tokens.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from methods.parts.fixed_tree import FixedTreeMethod
from methods.parts.tree_shape import parents_of_widths
from specbench.types import MOST, InputError


class SpecInfer(FixedTreeMethod):
    """draft: hub id or folder of the draft model. expansion: children of every node, by depth, the root's first.

    dtype, device: of the draft; default the target's. draft_temperature: at which the draft samples;
    None = as the request does.
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
