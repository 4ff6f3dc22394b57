"""How many nodes each of several requests may draft, and which of them are fed."""

from __future__ import annotations

from collections.abc import Sequence

from specbench.decode.together import Budgets, SharedRequest
from specbench.types import CaseError, Draft, Step


class FullBudget:
    """Every request drafts what its method wants."""

    def share(self, guests: Sequence[SharedRequest], most: int) -> Sequence[int]:
        return [most] * len(guests)

    def trim(self, guests: Sequence[SharedRequest], drafts: Sequence[Draft]) -> Sequence[Draft]:
        return drafts

    def observe(self, drafts: Sequence[Draft], steps: Sequence[Step | CaseError], rows: int, seconds: float) -> None:
        """Nothing is learned."""


class EqualBudget(FullBudget):
    """The nodes of a forward, the same share for each. nodes: of a forward."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def share(self, guests: Sequence[SharedRequest], most: int) -> Sequence[int]:
        share, rest = divmod(self._nodes, len(guests))
        return [min(most, share + (place < rest)) for place in range(len(guests))]


def make_budgets(kind: str, nodes: int) -> Budgets:
    """The budgets of ``load.budget``."""
    return FullBudget() if kind == "full" else EqualBudget(nodes)
