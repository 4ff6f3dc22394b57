"""A stand-in for CUDA graphs on a CPU: what is recorded once fills the same outputs at every later call."""

from __future__ import annotations

import torch

from specbench.target.fast.engine import FastEngine
from specbench.target.fast.graphs import Graphs, _tensors


def played(engine: FastEngine) -> FastEngine:
    """The engine, recording as on a GPU from now on."""
    engine.graphs = Playback(engine)
    return engine


class Playback(Graphs):
    """As on a GPU, without one: the first call runs once, then is recorded; later ones fill the same outputs."""

    capturing = True

    def __init__(self, engine: FastEngine) -> None:
        super().__init__(torch.device("cpu"))
        self.engine = engine

    def _warm_up(self, call):
        return call()

    def _record(self, call):
        kept = self._first_shapes(call)
        return Replay(call, kept, self.engine.cache), kept

    def _first_shapes(self, call):
        """The outputs' memory; what a recording does is undone, since a GPU would compute nothing."""
        cache, frames = self.engine.cache, self.engine.frames
        held = cache._all.clone(), {width: frame.wrong.clone() for width, frame in frames.items()}
        logits = self.engine.shared_logits.clone()
        kept = call()
        cache._all.copy_(held[0])
        for width, wrong in held[1].items():
            frames[width].wrong.copy_(wrong)
        for each in _tensors(kept):
            each.fill_(-7)
        self.engine.shared_logits.copy_(logits)  # the engine's own memory, which nothing but a call writes
        return kept


class Replay:
    """A recording. It reads the cache where it was."""

    def __init__(self, call, kept, cache) -> None:
        self.call, self.kept, self.cache, self.place = call, kept, cache, cache._all.data_ptr()

    def replay(self) -> None:
        assert self.cache._all.data_ptr() == self.place, "the cache has moved since this was recorded"
        for held, fresh in zip(_tensors(self.kept), _tensors(self.call()), strict=True):
            held.copy_(fresh)
