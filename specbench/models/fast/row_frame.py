"""The rows of a draft model's forward, in buffers of one size: behind a context, and behind nodes that were fed before.

As in ``frame``, the buffers never move and what is fed is only their content. The rows that are fed are the last ones,
so the last one's logits always lie in the same place; those before them are padding. No read-back comes between two
forwards of a draft, so every copy to a GPU has pinned memory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from specbench.models.fast.attention import Attend, TreeMask, count_words, pack_bits
from specbench.models.fast.frame import NEVER
from specbench.models.transfer import write
from specbench.models.tree import TreeRows

ROOMS = (32, 128, 512, 2048)  # nodes that a frame on a GPU has columns for


class RowFrame:
    """Buffers of ``width`` rows behind a context and ``room`` nodes, their own included.

    held: (1,) int64 [tokens] of the context.
    slots, ids, places, turned: (width,) int64. Places are positions, turned is where the embedding rotates them to;
    those of padding are 0, and its slots lie behind the others'.
    logits: (width, V) memory of a recorded forward's result; None: new at every call.
    """

    logits: Tensor | None = None

    def __init__(
        self,
        width: int,
        room: int,
        windows: Mapping[str, int | None],
        dtype: torch.dtype,
        device: torch.device,
        attend: Attend | None = None,
    ) -> None:
        """windows: attention kind -> sliding window [positions]. attend: the attention by bits, None = by a mask."""
        self.width, self._room, self._windows, self._attend = width, room, windows, attend
        self._step = torch.zeros(1 + 4 * width, dtype=torch.int64, device=device)
        self._values = self._step.numpy() if device.type == "cpu" else None  # the same memory
        self.held, self.slots, self.ids, self.places, self.turned = self._step.split([1, *[width] * 4])
        # Of each row: a bit for each node; or the context, the nodes, the slots behind them.
        shape, dtype = ((width, count_words(room)), torch.int32) if attend else ((width, room + 2), dtype)
        self._bias = {kind: torch.zeros(shape, dtype=dtype, device=device) for kind in windows}

    def fill(self, ids: Sequence[int] | Tensor, start: int, rows: TreeRows, masked: Sequence[str], last: int) -> None:
        """Enter m tokens, on the host or the device, into slots from ``start`` on.

        masked: kinds of attention whose mask is built. last: position that those behind it are turned to.
        """
        width, count, nodes = self.width, len(ids), len(rows.places)
        padding, places = width - count, rows.places[nodes - count :]
        step = np.zeros(1 + 4 * width, dtype=np.int64) if self._values is None else self._values
        step[0] = start + count - nodes
        slots, fed, at, turned = step[1:].reshape(4, width)
        slots[:padding] = range(start + count, start + width)
        slots[padding:] = range(start, start + count)
        at[padding:] = places
        held = isinstance(places, range) and places[-1] <= last
        turned[padding:] = places if held else [min(place, last) for place in places]
        if not isinstance(ids, Tensor):
            fed[padding:] = ids
        if self._values is None:
            write(self._step, torch.from_numpy(step))
        if isinstance(ids, Tensor):
            self.ids[padding:] = ids.to(self.ids.device)
        for kind in masked:
            near = rows.list_near(self._windows[kind])
            if self._attend:  # padding sees the context alone
                bits = np.zeros((width, self._room), dtype=bool)
                bits[padding:, :nodes] = near
                write(self._bias[kind], torch.from_numpy(pack_bits(bits)))
                continue
            seen = np.full((width, self._room + 2), NEVER, dtype=np.float32)
            seen[:, 0] = seen[:padding, 1] = 0  # padding sees what is there in any case, and so is finite
            seen[padding:, 1 : 1 + nodes][near] = 0
            write(self._bias[kind], torch.from_numpy(seen).to(self._bias[kind].dtype))

    def build_mask(self, kind: str, length: int, groups: int) -> Tensor | TreeMask:
        """What the rows see: bits, or additive (groups * width, length). See ``Frame``. length: [slots] of keys."""
        window, bias = self._windows[kind], self._bias[kind]
        if self._attend:
            return TreeMask(self._attend, self.held, self.places - self.held, bias, window, self._room)
        column = torch.arange(length, device=bias.device)
        mask = bias.index_select(1, (column - self.held).add_(1).clamp_(0, self._room + 1))
        if window is not None:
            far = (column < self.held) & (self.places[:, None] - column >= window)
            mask = mask.masked_fill_(far, NEVER)
        return mask if groups == 1 else mask.repeat(groups, 1)
