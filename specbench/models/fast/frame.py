"""The buffers of a recorded forward, those of the target's forward over a draft, and greedy
acceptance on the device.

The buffers never move: a draft is only their content. On a CPU host and device share them.

Acceptance consists of operations whose shapes do not depend on the draft: it never waits and never
branches. A node is right if it is the argmax of its parent's row, and accepted if every node above
it is right, too; the path ends at the deepest accepted node, the first one among equals, as in
``specbench.models.verify.find_accepted_path``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from specbench.models.fast.cache import StaticKV
from specbench.models.fast.compact import ForwardInput
from specbench.models.fast.layout import DeviceLayout, DraftLayout, Layout, lay_out
from specbench.models.fast.masks import NEVER, WORD, Attend, TreeMask, count_words, pack_bits
from specbench.models.transfer import upload, write
from specbench.models.verify import ActiveRequest, require_finite
from specbench.types import EMPTY

Run = Callable[[Hashable, Callable[[], Any]], Any]  # ``Graphs.run``
INFINITE_BITS = -0x80  # 0xff80, minus infinity in bfloat16, read as int16
_ALONE = lay_out((), EMPTY, None)


class Buffer:
    """A tensor on the host and on the device: ``values`` writes the host's, ``send`` copies it. On
    a CPU it is one.

    Copies of a pinned buffer read its own memory: ``values`` must not change before the device has
    received them. Otherwise every copy has its own pinned memory.
    """

    def __init__(
        self,
        shape: int | tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        pinned: bool = False,
    ) -> None:
        """Zeros of ``shape``. bfloat16, which numpy lacks, has its bits in ``values``; ``never`` is
        minus infinity.
        """
        self._pinned = pinned and device.type != "cpu"
        bits = dtype == torch.bfloat16
        self.device = torch.zeros(shape, dtype=dtype, device=device)
        self.host = (
            self.device
            if device.type == "cpu"
            else torch.zeros(shape, dtype=dtype, pin_memory=self._pinned)
        )
        self.values = (self.host.view(torch.int16) if bits else self.host).numpy()
        self.never: float = INFINITE_BITS if bits else NEVER

    def send(self) -> None:
        """Enqueue the copy."""
        if self._pinned:
            self.device.copy_(self.host, non_blocking=True)
        elif self.device is not self.host:
            write(self.device, self.host)


class Frame:
    """The buffers of a forward of ``width`` rows: tokens, positions, cache slots, and what the rows
    see.

    past: (1,) int64 [tokens] of the context.
    slots: (width + 1,) int64, those of the rows, and one more.
    ids, depths: (width,) int64. A row's position is ``past`` + its depth.
    bias: attention kind -> (width, columns) additive, which of the slots after the context the rows
    see; or (width, words) int32, a bit for each of these slots. logits: (width, V) memory of a
    recorded forward's result; None: new at every call.
    """

    # the memory of uploads, see ``Buffer``: forwards of a draft model do not wait
    pinned: ClassVar[bool] = False

    def __init__(
        self,
        width: int,
        windows: Mapping[str, int | None],
        dtype: torch.dtype,
        device: torch.device,
        attend: Attend | None = None,
        logits: Tensor | None = None,
        columns: int | None = None,
    ) -> None:
        """windows: attention kind -> sliding window [positions]. attend: the attention by bits,
        None = by a mask.

        columns: slots after the context that rows may see; None = those of the rows.
        """
        self.width, self.columns, self.windows, self._attend = (
            width,
            columns or width,
            windows,
            attend,
        )
        self.logits = logits
        shape, stored = (
            (self.columns, dtype) if attend is None else (count_words(self.columns), torch.int32)
        )
        make = partial(Buffer, device=device, pinned=self.pinned)
        self._step, self._depths = make(2 * width + 2, torch.int64), make(width, torch.int64)
        self._biases = {kind: make((width, shape), stored) for kind in windows}
        sizes = [1, width + 1, width]
        self.past, self.slots, self.ids = self._step.device.split(sizes)
        self._past, self._slots, self._ids = np.split(self._step.values, np.cumsum(sizes)[:2])
        self.depths, self.bias = (
            self._depths.device,
            {kind: each.device for kind, each in self._biases.items()},
        )
        self._columns = torch.arange(self.columns, device=device)
        self._range = np.arange(width + 1)

    def make_input(self, length: int, masked: Collection[str], groups: int) -> ForwardInput:
        """Make the input of a forward that reads ``length`` slots of keys.

        masked: kinds of attention that need a mask; in others a row sees all keys that are read.
        groups: query heads that share keys.
        """
        positions = self.past + self.depths
        masks = {kind: self.build_mask(kind, length, positions, groups) if kind in masked else None
                 for kind in self.windows}  # fmt: skip
        return ForwardInput(self.ids, positions, self.slots[:-1], length, masks)

    def build_mask(
        self, kind: str, length: int, positions: Tensor, groups: int
    ) -> Tensor | TreeMask:
        """Build the mask of the context in the window and of the columns: additive (groups * width,
        length), or bits.

        positions: (width,). The rest: see ``make_input``.
        """
        window, bias = self.windows[kind], self.bias[kind]
        if self._attend:
            return TreeMask(self._attend, self.past, self.depths, bias, window, self.columns)
        column = torch.arange(length, device=bias.device)
        seen = column < self.past
        if window is not None:
            seen = seen & (positions[:, None] - column < window)
        mask = torch.where(seen, 0.0, NEVER).to(bias.dtype).expand(self.width, -1).clone()
        mask.index_copy_(1, self.past + self._columns, bias)
        return mask if groups == 1 else mask.repeat(groups, 1)

    def write_bias(self, kind: str, near: np.ndarray) -> None:
        """Enter (width, columns) bool: the columns that each row sees, within the window."""
        bias = self._biases[kind]
        bias.values[:] = pack_bits(near) if self._attend else np.where(near, 0, bias.never)
        bias.send()


class TreeFrame(Frame):
    """The frame of a draft for the target, with what acceptance reads.

    Rows after a draft's own are padding: they see the context and themselves.
    parents: (width,) int64.
    reach: (width,) float32, the depth where a row may be accepted, else -1.
    above: (width, width) float32, 1 where a row hangs from another or is it, roots left out.
    wrong: (width,) float32 scratch.
    forced: (width,) int64 picks that replace the argmax; None: the argmax is used.
    fed, biases, span: on a CPU ``ids``; each kind's (width, width) ``bias`` as stored; and (1, 5)
    of the request, see ``specbench.models.fast.host.kernels.forward``.
    """

    pinned = True  # the read-back of a step comes before the next draft is written

    def __init__(
        self,
        width: int,
        windows: Mapping[str, int | None],
        dtype: torch.dtype,
        device: torch.device,
        attend: Attend | None = None,
        forces: bool = False,
        logits: Tensor | None = None,
    ) -> None:
        """See ``Frame``. forces: acceptance reads ``forced`` instead of the argmax."""
        super().__init__(width, windows, dtype, device, attend, logits)
        make = partial(Buffer, device=device, pinned=self.pinned)
        self._tree = [
            make(width, torch.int64),
            make(width, torch.float32),
            make((width, width), torch.float32),
        ]
        self.parents, self.reach, self.above = (each.device for each in self._tree)
        self.wrong = torch.zeros(width, dtype=torch.float32, device=device)
        self._forced = make(width, torch.int64) if forces else None
        self.forced = self._forced.device if self._forced else None
        self.layout: Layout | None = None
        self.fed, self.biases = self._ids, [each.values for each in self._biases.values()]
        self.span = np.array([[0, width, 0, 0, 0]])

    def find_positions(self) -> np.ndarray:
        """Return (width,) positions, on a CPU."""
        return self._past + self._depths.values

    def read_tree(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Return, on a CPU, ids, parents and reach (width,) each, and past."""
        return self._ids, self._tree[0].values, self._tree[1].values, int(self._past[0])

    def force(self, picks: np.ndarray) -> None:
        """Enter the (n,) picks of the draft's own rows; those of the padding are never read."""
        assert self._forced is not None
        self._forced.values[: len(picks)] = picks
        self._forced.send()

    def fill(
        self,
        root: int,
        tokens: Sequence[int] | Tensor,
        past: int,
        layout: Layout,
        run: Run | None = None,
    ) -> None:
        """Enter a draft. tokens: of its nodes, on the host or the device. run: of ``Graphs``, for
        its layout there.
        """
        if layout is not self.layout:
            if isinstance(layout, DraftLayout):
                self.lay_out(layout)
            else:
                assert run is not None
                self._lay_out_on_device(layout, run)
            self.layout = layout
        self._past[0], self._ids[0], self.span[0, 3:] = past, root, past
        np.add(self._range, past, out=self._slots)
        on_host = not isinstance(tokens, Tensor)
        if on_host and layout.source is None:
            self._ids[1 : len(layout)] = tokens
        elif on_host:
            self._ids[: len(layout)] = np.array([root, *tokens])[layout.source]
        self._step.send()
        if isinstance(tokens, Tensor):
            tokens = tokens.to(self.ids.device)  # drafted on the device, where they stay
            if layout.source is None:
                self.ids[1 : len(layout)] = tokens
            else:
                source = upload(layout.source, self.ids.device)
                self.ids[: len(layout)] = torch.cat([self.ids[:1], tokens])[source]

    def clear(self) -> None:
        """Enter a root alone before all slots: the last draft may be beyond the keys that a
        recording reads.
        """
        self.fill(0, (), 0, _ALONE)

    def lay_out(self, layout: DraftLayout) -> None:
        """Enter a layout that the host knows."""
        count, depths = len(layout), self._depths.values
        parents, reach, above = (each.values for each in self._tree)
        seen = np.eye(self.width, dtype=bool)
        seen[:count, :count] = layout.seen()
        depths[:], parents[:], reach[:] = 0, 0, -1
        depths[:count], parents[:count], reach[:count] = layout.depths, layout.parents, layout.reach
        above[:] = seen & (depths > 0)
        for kind, window in self.windows.items():
            self.write_bias(
                kind,
                seen if window is None else seen & (depths[:, None] - depths[None, :] < window),
            )
        for each in (self._depths, *self._tree):
            each.send()

    def _lay_out_on_device(self, layout: DeviceLayout, run: Run) -> None:
        """Write what ``lay_out_rows`` reads, and run it."""
        self.parents.zero_()
        self.parents[1 : len(layout)] = layout.above.to(self.parents.device) + 1
        self.reach.fill_(-1)
        self.reach[: len(layout)] = 0
        self.prepare_layout(run)

    def prepare_layout(self, run: Run) -> None:
        """Run ``lay_out_rows``; its first call for a width records it."""
        run(("lay out", self.width), partial(lay_out_rows, self))

    def depths_of(self, layout: Layout) -> Sequence[int] | Tensor:
        """(N+1,) depths of the root and of each node; on the device if the tree is there."""
        if isinstance(layout, DeviceLayout):
            return self.depths[: len(layout)]
        found: list[int] = (
            layout.depths if layout.nodes is None else layout.depths[layout.nodes]
        ).tolist()
        return found


def lay_out_rows(frame: TreeFrame) -> Tensor:
    """Compute the other buffers of a frame from parents, and reach of -1 at padding, as
    ``TreeFrame`` does on the host.

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
        bias.copy_(
            _pack(near, bias.shape[1])
            if bias.dtype == torch.int32
            else torch.where(near, 0.0, NEVER)
        )
    return depths


def _pack(near: Tensor, words: int) -> Tensor:
    """Pack (n, m) bool into (n, words), as ``attention.pack_bits`` does."""
    place = torch.arange(near.shape[1], device=near.device)
    whole = torch.zeros(len(near), words, dtype=torch.int64, device=near.device)
    whole = whole.index_add_(1, place // WORD, near.long() << (place % WORD))
    return torch.where(whole >= 2 ** (WORD - 1), whole - 2**WORD, whole)


@dataclass(slots=True)
class FastRequest(ActiveRequest):
    """The request that the fast engine decodes. layout, frame: of the last draft."""

    # [tokens] in the cache: the context without its last one, the root. Of the last forward:
    length: int = 0
    layout: Layout = field(init=False)
    frame: TreeFrame = field(init=False)
    key: tuple[int, int, tuple[int, ...]] = field(init=False)  # width, key length and taps
    moved: int = field(init=False)  # rows that acceptance moves
    logits: Tensor = field(init=False)  # (width, V)
    hidden: Mapping[int, Tensor] = field(init=False)  # layer -> (width, D)

    def select(self, computed: Tensor) -> Tensor:
        """(width, ...) -> (N+1, ...): row 0 the root, row i + 1 node i of the draft."""
        nodes = self.layout.nodes
        if nodes is None:
            return computed[: len(self.layout)]
        return computed[upload(nodes, computed.device)]


_FAR = 1e6  # more than any depth: one wrong node above rules a row out


def accept(logits: Tensor, frame: TreeFrame, cache: StaticKV, moved: int) -> Tensor:
    """Verify a draft and move its accepted path together; what the host reads of it, as one float32
    tensor.

    logits: (n, V).
    moved: rows of the cache to move, no fewer than the draft is deep; 0 for a chain, whose accepted
    nodes are adjacent already, and for a root alone.

    Where the frame has forced picks, the argmax is computed all the same. Returns what
    ``read_outcome`` reads; exact, since no token id is beyond 2^24.
    """
    peaks, picks = logits.max(-1)
    if frame.forced is not None:
        picks = frame.forced
    if frame.width == 1:
        return torch.cat([frame.reach, picks, peaks])
    torch.ne(picks.index_select(0, frame.parents), frame.ids, out=frame.wrong)
    depth, best = torch.addmv(frame.reach, frame.above, frame.wrong, alpha=-_FAR).max(
        0, keepdim=True
    )
    found = [depth, picks.index_select(0, best), peaks.sum(0, keepdim=True, dtype=torch.float32)]
    if not moved:
        return torch.cat([*found, frame.ids])
    path = frame.above.index_select(0, best)[0].sort(descending=True, stable=True).indices[:moved]
    cache.move(frame.slots.index_select(0, path), frame.slots[1 : moved + 1])
    return torch.cat([*found, frame.ids.index_select(0, path), path])


def read_outcome(
    numbers: Sequence[float], moved: int, dtype: torch.dtype
) -> tuple[list[int], list[int]]:
    """Read what ``accept`` returned: the rows of the accepted nodes, root side first; their tokens
    and the next pick.

    moved: as there. Raises CaseError when a row's logits are not finite.
    """
    depth, bonus, total, *rest = numbers
    require_finite([total], dtype)
    count = int(depth)
    if not moved:
        return list(range(1, count + 1)), [*map(int, rest[1 : count + 1]), int(bonus)]
    return [*map(int, rest[moved : moved + count])], [*map(int, rest[:count]), int(bonus)]
