"""CUDA graphs by key: a function of tensors is recorded once and replayed on a GPU; on a CPU it is
called.

Forwards come in bucketed widths and key lengths, one graph for each; acceptance by width and rows
moved; on a CPU every size is its own. A recorded call never waits for the host, has no shape that
depends on content, and uses the same buffers every time. All graphs of one ``Graphs`` share a
memory pool: an output is valid until another call that was recorded earlier runs. ``run`` computes
once, also when it records: moving a cache's slots twice would be wrong.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

SHALLOW = 16  # [nodes] a tree's depth up to which acceptance moves no more rows than these
WIDTHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
# the rows of a draft of 64 nodes; contexts of a round length read no step more than their own
FED = 96
ROUND = (
    512,
    1024,
    1536,
    2048,
    3072,
    4096,
    6144,
    8192,
    12288,
    16384,
    24576,
    32768,
    49152,
    65536,
    98304,
    131072,
)
LENGTHS = (256, *(size + FED for size in ROUND))


@dataclass(frozen=True, slots=True)
class Buckets:
    """widths: rows fed. lengths: [slots] of keys read. Empty = every size is its own.

    whole: keys are read up to the capacity, so that no recording depends on a length.
    """

    widths: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    whole: bool = False

    def width(self, rows: int) -> int:
        """Return the smallest width for ``rows``; beyond the largest a multiple of it."""
        return _fit(rows, self.widths)

    def length(self, slots: int, room: int) -> int:
        """Return the smallest length for ``slots``, at most ``room``."""
        return room if self.whole else min(_fit(slots, self.lengths), room)

    def reads_alike(self, slots: int) -> tuple[int, int]:
        """The fewest and the most slots of one length with ``slots``; all sizes where lengths have
        no steps.
        """
        if self.whole or not self.lengths:
            return 0, sys.maxsize
        most = _fit(slots, self.lengths)
        return 1 + max(
            size for size in (0, *self.lengths, most - self.lengths[-1]) if size < most
        ), most

    def list_lengths(self, width: int, room: int) -> list[int]:
        """Every length that a forward of ``width`` may read."""
        return sorted(
            {found for size in self.lengths if (found := self.length(size, room)) >= width}
        )

    def moved(self, depth: int, width: int) -> int:
        """Return how many rows of a tree of ``depth`` acceptance moves; no path is longer."""
        if not self.widths:
            return depth
        return min(SHALLOW, width) if depth <= SHALLOW else width

    def list_moved(self, width: int) -> list[int]:
        """Every number of rows that acceptance may move; 0 for chains, whose rows stay."""
        return sorted(
            {0, *(self.moved(depth, width) for depth in (1, width - 1) if 1 <= depth < width)}
        )

    def room(self, slots: int) -> int:
        """[slots] to reserve for ``slots``: whole lengths, so that a request little longer needs no
        other memory.
        """
        return _fit(slots, self.lengths)


GRAPHED = Buckets(WIDTHS, LENGTHS)
EXACT = Buckets()
FRAMES = 256  # sizes whose buffers are kept where every size is its own
Frame = TypeVar("Frame")


class Frames(Generic[Frame]):
    """The buffers of forwards by size, the same ones at every call, and one memory of the logits of
    all recordings.

    A memory for each recording would take gigabytes.
    """

    def __init__(self, make: Callable[..., Frame], buckets: Buckets, head: Tensor) -> None:
        """make: width, memory of the logits, other sizes by name -> the buffers. head: (V, D)
        weights.
        """
        self._make, self._recorded, self._head = make, bool(buckets.widths), head
        # a recording reads its buffers for ever
        self._bounded = not self._recorded and head.device.type != "cuda"
        self.known: dict[tuple[int, ...], Frame] = {}
        self.logits = head.new_empty(0, len(head))

    def find(self, width: int, *, most: int, **others: int) -> Frame:
        """Return the buffers of a size. most: the largest width so far."""
        size = width, *others.values()
        if self._recorded and width > len(self.logits):  # earlier recordings keep their memory
            self.logits = self._head.new_empty(max(width, most), len(self._head))
        if size not in self.known:
            if len(self.known) == FRAMES and self._bounded:
                self.known.clear()
            self.known[size] = self._make(
                width, logits=self.logits[:width] if self._recorded else None, **others
            )
        return self.known[size]


def _fit(size: int, steps: tuple[int, ...]) -> int:
    if not steps:
        return size
    place = bisect_left(steps, size)
    return steps[place] if place < len(steps) else -(-size // steps[-1]) * steps[-1]


class Graphs:
    """The recorded calls of one engine.

    All are warmed up and captured on one stream of the device. Torch's default is one stream for
    the process, on the device that was current first: on another device it captures nothing. And a
    library keeps workspace for each stream (cuBLAS 32 MiB on an H100).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._recorded: dict[Hashable, tuple[Any, Any]] = {}
        self._pool: Any = None
        self._stream: Any = None

    def __len__(self) -> int:
        return len(self._recorded)

    @cached_property
    def capturing(self) -> bool:
        """True if calls are recorded at all."""
        return self._device.type == "cuda"

    def run(self, key: Hashable, call: Callable[[], Any]) -> Any:
        """Return the outputs of ``call``; calls of equal keys may differ only in the content of
        their buffers.

        Outputs may be buffers of the caller, the same ones at every call.
        """
        if not self.capturing:
            return call()
        if key in self._recorded:
            graph, output = self._recorded[key]
            graph.replay()
            return output
        first = self._warm_up(call)
        graph, output = self._recorded[key] = self._record(call)
        for recorded, fresh in zip(_tensors(output), _tensors(first), strict=True):
            recorded.copy_(fresh)
        return output

    def prepare(self, key: Hashable, call: Callable[[], Any]) -> None:
        """Record ``call`` now, so that it is replayed when it is first needed."""
        self.run(key, call)

    def _warm_up(self, call: Callable[[], Any]) -> Any:
        """Run on a side stream, where libraries choose kernels and take workspace before the
        recording.
        """
        with torch.cuda.device(self._device):
            self._stream = self._stream or torch.cuda.Stream(self._device)
            current = torch.cuda.current_stream(self._device)
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                first = call()
            current.wait_stream(self._stream)
        return first

    def _record(self, call: Callable[[], Any]) -> tuple[Any, Any]:
        """Return the graph and its outputs; nothing is computed. Other threads, a drafter's or
        NCCL's, keep running.
        """
        with torch.cuda.device(self._device):
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(
                graph, self._pool, self._stream, capture_error_mode="thread_local"
            ):
                output = call()
        return graph, output

    def drop(self) -> None:
        """Forget every recording: a buffer that they use has moved."""
        self._recorded.clear()
        self._pool = None


@contextlib.contextmanager
def many_recordings() -> Iterator[None]:
    """Exclude live objects from the garbage collections that torch (up to 2.8) runs at every
    recording.
    """
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


def _tensors(output: Any) -> Iterator[Tensor]:
    """Iterate over the tensors of a call's output: one, or tuples and mappings of them."""
    if isinstance(output, Tensor):
        yield output
        return
    for each in output.values() if isinstance(output, Mapping) else output:
        yield from _tensors(each)
