"""A stand-in for CUDA graphs on a CPU: what is recorded once fills the same outputs at every later
call.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import torch
from torch import Tensor

from specbench.models.fast.engine import FastEngine
from specbench.models.fast.graphs import Graphs, _tensors


def played(engine: FastEngine) -> FastEngine:
    """The engine, recording as on a GPU from now on."""
    engine.graphs, engine.acceptances = Playback(engine), Playback(engine)
    return engine


class Playback(Graphs):
    """As on a GPU, without one: the first call runs once, then is recorded; later ones fill the
    same outputs.

    A recording may have its memory between the steps of an earlier one, so replaying that one loses
    its outputs.
    """

    capturing = True

    def __init__(self, engine: FastEngine | SimpleNamespace) -> None:
        """engine: or the cache and the frames of a draft model."""
        super().__init__(torch.device("cpu"))
        self.engine = engine
        self.recorded: list[Replay] = []

    def _warm_up(self, call):
        return call()

    def _record(self, call):
        self.recorded.append(Replay(self, call, self._first_shapes(call)))
        return self.recorded[-1], self.recorded[-1].kept

    def drop(self) -> None:
        super().drop()
        self.recorded.clear()

    def _own(self) -> Iterator[Tensor]:
        """The engine's memory that a call writes."""
        yield from (self.engine.cache._all, self.engine.frames.logits)
        for frame in self.engine.frames.known.values():
            scratch = getattr(frame, "wrong", None), frame.logits
            yield from (each for each in scratch if each is not None)

    def _first_shapes(self, call):
        """The outputs' memory; what a recording does is undone, since a GPU would compute
        nothing.
        """
        saved = [(each, each.clone()) for each in self._own()]
        kept = call()
        for each, before in saved:
            each.copy_(before)
        for each in self.outputs(kept):
            each.fill_(-7)
        return kept

    def outputs(self, kept) -> Iterator[Tensor]:
        """Those that lie in the recordings' memory."""
        own = {each.untyped_storage().data_ptr() for each in self._own()}
        return (each for each in _tensors(kept) if each.untyped_storage().data_ptr() not in own)


class Replay:
    """A recording. It reads the cache where it was."""

    def __init__(self, playback: Playback, call, kept) -> None:
        self.playback, self.call, self.kept = playback, call, kept
        self.place = playback.engine.cache._all.data_ptr()

    def replay(self) -> None:
        playback = self.playback
        assert playback.engine.cache._all.data_ptr() == self.place, (
            "the cache has moved since this was recorded"
        )
        for later in playback.recorded[playback.recorded.index(self) + 1 :]:
            for each in playback.outputs(later.kept):
                each.fill_(-7)
        for kept, fresh in zip(_tensors(self.kept), _tensors(self.call()), strict=True):
            kept.copy_(fresh)
