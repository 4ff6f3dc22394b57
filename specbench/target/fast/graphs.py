"""CUDA graphs by key: a function of tensors is recorded once and replayed; without a GPU it is simply called.

What a call may do is what a graph can hold: no host synchronisation, no shape that depends on content, the same buffers
every time. All graphs share one memory pool: what one leaves behind may lie where another computes, so outputs are
valid until the next step's forward runs. Every ``run`` carries its call out once, the recording one too: moving a cache
twice would not be moving it once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


class Graphs:
    """Recorded calls of one engine."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[Hashable, tuple[Any, Any]] = {}
        self._pool: Any = None

    @property
    def capturing(self) -> bool:
        """Whether calls are recorded at all."""
        return self._device.type == "cuda"

    def run(self, key: Hashable, call: Callable[[], Any]) -> Any:
        """What ``call`` returns; equal keys must mean calls that differ in the content of their buffers only.

        Outputs may lie in buffers of the caller's own, the same ones at every call.
        """
        if not self.capturing:
            return call()
        if key in self._held:
            graph, output = self._held[key]
            graph.replay()
            return output
        first = self._warm_up(call)
        graph, output = self._held[key] = self._record(call)
        for held, fresh in zip(_tensors(output), _tensors(first), strict=True):
            held.copy_(fresh)
        return output

    def _warm_up(self, call: Callable[[], Any]) -> Any:
        """Run on a side stream, where libraries choose kernels and take workspace before the recording."""
        with torch.cuda.device(self._device):
            stream, current = torch.cuda.Stream(self._device), torch.cuda.current_stream(self._device)
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                first = call()
            current.wait_stream(stream)
        return first

    def _record(self, call: Callable[[], Any]) -> tuple[Any, Any]:
        """The graph and its outputs; nothing is computed. Other threads, a drafter's or NCCL's, go on meanwhile."""
        with torch.cuda.device(self._device):
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                output = call()
        return graph, output

    def drop(self) -> None:
        """Forget every recording: a buffer that they use has moved."""
        self._held.clear()
        self._pool = None


def _tensors(output: Any) -> Iterator[Tensor]:
    """The tensors of a call's output: one, or tuples and mappings of them."""
    if isinstance(output, Tensor):
        yield output
        return
    for each in output.values() if isinstance(output, Mapping) else output:
        yield from _tensors(each)
