"""The rows of several requests in one forward, and what a batch holds of each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from specbench.models.tree import compute_depths
from specbench.models.verify import ActiveRequest
from specbench.types import ROOT, CaseError, Needs

NOTHING = Needs()


@dataclass(slots=True, eq=False)
class Handle(ActiveRequest):
    """A request of a batch. place: which of the batch's it has; the lowest that is free, so that they lie together.

    asked: what its last forward shows. plain: what one without a draft shows.
    length: [tokens] held: of the prompt while it is read, then the context without its last one, the root.
    clean: its slots hold finite numbers. refused: why its last draft was not fed.
    """

    prompt: Sequence[int] = ()
    place: int = ROOT
    asked: Needs = NOTHING
    plain: Needs = NOTHING
    length: int = 0
    clean: bool = True
    refused: CaseError | None = None

    @property
    def prompt_read(self) -> int:
        """[tokens] of the prompt that are read."""
        return min(self.length, len(self.prompt))


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The n rows of a forward: of each request its root, then its nodes; or a chunk of its prompt, as a chain.

    parents: of each request (N,), as in its draft. bounds: (B + 1,) where the rows of each begin, and n.
    ids: (n,) int64.
    """

    handles: Sequence[Handle]
    parents: Sequence[Sequence[int]]
    bounds: Sequence[int]
    ids: Tensor

    def __len__(self) -> int:
        """N."""
        return self.bounds[-1]

    def slice_of(self, number: int) -> slice:
        """The rows of one request."""
        return slice(self.bounds[number], self.bounds[number + 1])

    def depths_of(self, number: int) -> list[int]:
        """(N + 1,) of the rows of one request, 0 = the root."""
        parents = self.parents[number]
        return [*range(len(parents) + 1)] if isinstance(parents, range) else [0, *compute_depths(parents)]
