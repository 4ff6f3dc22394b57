"""Greedy acceptance on the device, in operations whose shapes do not depend on the draft: no wait, no branch.

A node is right if it holds the argmax of its parent's row, and accepted if every node above it is right too; the path
ends at the deepest accepted node, the first one among equals, as in ``specbench.models.verify.find_accepted_path``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specbench.models.fast.frame import Frame
from specbench.models.fast.static_kv import StaticKV
from specbench.models.verify import require_finite

_FAR = 1e6  # more than any depth: one wrong node above rules a row out


def accept(logits: Tensor, frame: Frame, cache: StaticKV, moved: int) -> Tensor:
    """Verify a draft and move its accepted path together; what the host reads of it, as one float32 tensor.

    logits: (n, V).
    moved: rows of the cache to move, no fewer than the draft is deep; 0 for a chain, whose accepted nodes lie together
    already, and for a root alone.

    Where the frame has forced picks, the argmax is computed all the same. Returns what ``Outcome`` reads; exact, since
    no token id is beyond 2^24.
    """
    peaks, picks = logits.max(-1)
    if frame.forced is not None:
        picks = frame.forced
    if frame.width == 1:
        return torch.cat([frame.reach, picks, peaks])
    torch.ne(picks.index_select(0, frame.parents), frame.ids, out=frame.wrong)
    depth, best = torch.addmv(frame.reach, frame.above, frame.wrong, alpha=-_FAR).max(0, keepdim=True)
    found = [depth, picks.index_select(0, best), peaks.sum(0, keepdim=True, dtype=torch.float32)]
    if not moved:
        return torch.cat([*found, frame.ids])
    path = frame.above.index_select(0, best)[0].sort(descending=True, stable=True).indices[:moved]
    cache.move(frame.slots.index_select(0, path), frame.slots[1 : moved + 1])
    return torch.cat([*found, frame.ids.index_select(0, path), path])


@dataclass(frozen=True, slots=True)
class Outcome:
    """rows: of the accepted nodes, root side first. tokens: theirs, then the one the target picks behind them."""

    rows: list[int]
    tokens: list[int]

    @classmethod
    def read(cls, numbers: Sequence[float], moved: int, dtype: torch.dtype) -> Outcome:
        """numbers: what ``accept`` returned; moved: as there. Raises CaseError when a row's logits are not finite."""
        depth, bonus, total, *rest = numbers
        require_finite([total], dtype)
        count = int(depth)
        if not moved:
            return cls(list(range(1, count + 1)), [*map(int, rest[1 : count + 1]), int(bonus)])
        rows = rest[moved : moved + count]
        return cls([*map(int, rows)], [*map(int, rest[:count]), int(bonus)])
