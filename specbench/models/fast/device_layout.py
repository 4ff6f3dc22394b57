"""Layouts of drafts as they come. Parents that are on the device are laid out there, and the host reads them later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specbench.models.fast.attention import WORD
from specbench.models.fast.frame import NEVER, Frame
from specbench.models.fast.layout import Layout, Run, lay_out
from specbench.models.tree import RowBatch, compute_depths
from specbench.types import Draft

LAYOUTS = 1024  # are remembered


@dataclass(frozen=True, slots=True)
class DeviceLayout:
    """As ``DraftLayout``, of a tree below one root whose rows stand in the draft's order.

    above: (N,) int64 parents of the draft's nodes. depth: the most levels there may be.
    """

    above: Tensor
    depth: int
    chain: bool = False
    nodes: None = None
    source: None = None

    def __len__(self) -> int:
        """Rows."""
        return len(self.above) + 1

    def node_of(self, row: int) -> int:
        """The draft's node that a row holds."""
        return row - 1

    def rows_to_move(self, path: Sequence[int]) -> list[int]:
        """See ``DraftLayout``."""
        rows = [node + 1 for node in path]
        return [] if rows == list(range(1, len(rows) + 1)) else rows

    def enter(self, frame: Frame, run: Run | None) -> None:
        """Write what ``lay_out_rows`` reads, and run it."""
        assert run is not None
        frame.parents.zero_()
        frame.parents[1 : len(self)] = self.above.to(frame.parents.device) + 1
        frame.reach.fill_(-1)
        frame.reach[: len(self)] = 0
        run(("lay out", frame.width), partial(lay_out_rows, frame))

    def depths_in(self, frame: Frame) -> Tensor:
        """See ``DraftLayout``."""
        return frame.depths[: len(self)]


def lay_out_rows(frame: Frame) -> Tensor:
    """From parents, and reach of -1 at padding, the other buffers of a frame: what ``Frame`` computes on the host.

    In operations of one shape, without a wait. Returns (width,) depths.
    """
    width, real = frame.width, frame.reach >= 0
    itself = torch.eye(width, device=real.device)
    seen = itself.scatter_add(1, frame.parents[:, None], real[:, None].float()).clamp_(max=1)
    for _ in range((width - 1).bit_length()):  # ancestors of ancestors
        seen = (seen @ seen).clamp_(max=1)
    depths = (seen.sum(1) - 1).long()
    frame.depths.copy_(depths)
    frame.reach.copy_(torch.where(real, depths.float(), -1.0))
    frame.above.copy_(seen * (depths > 0))
    for kind, bias in frame.bias.items():
        window = frame.windows[kind]
        near = seen > 0 if window is None else (seen > 0) & (depths[:, None] - depths < window)
        bias.copy_(_pack(near, bias.shape[1]) if bias.dtype == torch.int32 else torch.where(near, 0.0, NEVER))
    return depths


def _pack(near: Tensor, words: int) -> Tensor:
    """As ``attention.pack_bits``: (n, m) bool -> (n, words)."""
    place = torch.arange(near.shape[1], device=near.device)
    whole = torch.zeros(len(near), words, dtype=torch.int64, device=near.device)
    whole = whole.index_add_(1, place // WORD, near.long() << (place % WORD))
    return torch.where(whole >= 2 ** (WORD - 1), whole - 2**WORD, whole)


class Layouts:
    """Layouts by the shapes of drafts, so that chains and fixed trees are laid out once."""

    def __init__(self) -> None:
        self._held: dict[object, Layout] = {}

    def find(self, parents: Sequence[int] | Tensor, draft: Draft, as_rows: bool) -> Layout:
        """The layout of a draft. parents: its own, on the host unless they stay on the device."""
        if isinstance(parents, Tensor):
            return DeviceLayout(parents, draft.depth or len(parents))
        shape = parents if isinstance(parents, range) else tuple(parents)
        key = shape, None if draft.passenger is None else tuple(draft.passenger), as_rows
        if key not in self._held:
            if len(self._held) == LAYOUTS:
                self._held.clear()
            batch = RowBatch.of(parents, compute_depths(parents)) if as_rows else None
            self._held[key] = lay_out(parents, draft, batch)
        return self._held[key]
