"""The inputs of a forward of one width, in buffers that never move: a draft is only content of them.

Host and device hold the same tensors. On a CPU they are one; on a GPU the host's are pinned and copied without waiting,
which is safe because every step ends with a read-back before the next one is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from specbench.target.fast.layout import DraftLayout

NEVER = float("-inf")
INFINITE_BITS = -0x80  # 0xff80, minus infinity in bfloat16, read as int16


class Frame:
    """Buffers of ``width`` rows. What is behind a draft's own rows is padding: it sees the context and itself.

    past: (1,) int64 [tokens] held before these. ids, depths, parents: (width,) int64. reach: (width,) float32.
    above: (width, width) float32, 1 where a row hangs from another or is it, roots left out. wrong: (width,) scratch.
    bias: attention kind -> (width, width) additive, what the rows see of each other.
    told: (width,) int64 what each row picks whatever its logits say; None: what they say.
    """

    def __init__(self, width: int, windows: Mapping[str, int | None], dtype: torch.dtype, device: torch.device) -> None:
        """windows: attention kind -> sliding window [positions]."""
        self.width, self._windows = width, windows
        step = [Buffer(size, torch.int64, device) for size in (1, width)]
        lying = [Buffer(width, torch.int64, device), Buffer(width, torch.int64, device)]
        lying += [Buffer(shape, torch.float32, device) for shape in ((width,), (width, width))]
        biases = [Buffer((width, width), dtype, device) for _ in windows]
        self.past, self.ids = (each.device for each in step)
        self.depths, self.parents, self.reach, self.above = (each.device for each in lying)
        self.bias = {kind: each.device for kind, each in zip(windows, biases, strict=True)}
        self.wrong = torch.zeros(width, dtype=torch.float32, device=device)
        self._step, self._lying, self._biases = step, lying, biases
        self._layout: DraftLayout | None = None
        self._told: Buffer | None = None

    @property
    def told(self) -> Tensor | None:
        """See the class."""
        return None if self._told is None else self._told.device

    def be_told(self) -> None:
        """From now on ``tell`` says what the rows pick, before acceptance is called or recorded."""
        if self._told is None:
            self._told = Buffer(self.width, torch.int64, self.ids.device)

    def tell(self, picks: np.ndarray) -> None:
        """Enter the picks of the draft's own rows; nobody asks for those of the padding."""
        assert self._told is not None
        self._told.values[: len(picks)] = picks
        self._told.send()

    def fill(self, root: int, tokens: Sequence[int] | Tensor, past: int, layout: DraftLayout) -> None:
        """Enter a draft. tokens: of its nodes, on the host or the device."""
        if layout is not self._layout:
            self._lay_out(layout)
            self._layout = layout
        held, ids = (each.values for each in self._step)
        held[0], ids[0] = past, root
        on_host = not isinstance(tokens, Tensor)
        if on_host and layout.source is None:
            ids[1 : len(layout)] = tokens
        elif on_host:
            ids[: len(layout)] = np.array([root, *tokens])[layout.source]
        for each in self._step:
            each.send()
        if isinstance(tokens, Tensor):
            self._enter(tokens.to(self.ids.device), layout)

    def _enter(self, tokens: Tensor, layout: DraftLayout) -> None:
        """Tokens that were drafted on the device stay there."""
        if layout.source is None:
            self.ids[1 : len(layout)] = tokens
        else:
            source = torch.from_numpy(layout.source).to(self.ids.device, non_blocking=True)
            self.ids[: len(layout)] = torch.cat([self.ids[:1], tokens])[source]

    def _lay_out(self, layout: DraftLayout) -> None:
        count = len(layout)
        depths, parents, reach, above = (each.values for each in self._lying)
        seen = np.eye(self.width, dtype=bool)
        seen[:count, :count] = layout.seen()
        depths[:], parents[:], reach[:] = 0, 0, -1
        depths[:count], parents[:count], reach[:count] = layout.depths, layout.parents, layout.reach
        above[:] = seen & (depths > 0)
        for bias, window in zip(self._biases, self._windows.values(), strict=True):
            near = seen if window is None else seen & (depths[:, None] - depths[None, :] < window)
            bias.values[:] = np.where(near, 0, bias.never)
        for each in (*self._lying, *self._biases):
            each.send()


class Buffer:
    """One tensor twice: ``values`` writes the host's, ``send`` brings it to the device's. On a CPU they are one."""

    def __init__(self, shape: int | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        """Zeros of ``shape``. bfloat16, which numpy lacks, has its bits in ``values``; ``never`` is minus infinity."""
        bits = dtype == torch.bfloat16
        here = device.type == "cpu"
        self.host = torch.zeros(shape, dtype=dtype, pin_memory=not here)
        self.device = self.host if here else torch.zeros(shape, dtype=dtype, device=device)
        self.values = (self.host.view(torch.int16) if bits else self.host).numpy()
        self.never: float = INFINITE_BITS if bits else NEVER

    def send(self) -> None:
        """Enqueue the copy."""
        if self.device is not self.host:
            self.device.copy_(self.host, non_blocking=True)
