"""SpecInfer's token tree (Miao et al. 2024): an expansion configuration gives the children of each
depth.

Children are drawn from the draft's distribution independently, so siblings may repeat a token; the
walker tries each of them by that distribution (multi-step speculative sampling). At temperature 0
they are the draft's best tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from methods.parts.fixed_tree import FixedTreeMethod
from methods.parts.tree_shape import TreeShape
from specbench.types import MOST, InputError


@dataclass(eq=False)
class SpecInfer(FixedTreeMethod):
    """SpecInfer's tree; conf/method/specinfer.yaml describes the parameters."""

    replace = True

    expansion: list[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        expansion = self.expansion
        if not expansion or min(expansion) < 1:
            raise InputError(
                f"expansion={expansion}: expected a list of whole numbers of at least 1, one a"
                " depth"
            )
        if sum(accumulate(expansion, mul)) > MOST:
            raise InputError(
                f"expansion={expansion}: makes more than {MOST} nodes; expected a smaller tree"
            )
        counts = [
            [width] * above
            for width, above in zip(expansion, accumulate(expansion, mul, initial=1), strict=False)
        ]
        self.plant(TreeShape.from_counts(counts, MOST), f"expansion={expansion}")
