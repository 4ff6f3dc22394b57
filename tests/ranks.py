"""Followers for tests of several ranks: some dawdle, some err; known by name, so that a process can
be one of them.
"""

from __future__ import annotations

import contextlib
import os
import random
import time

import torch

from specbench.models.facade import ModelCard
from specbench.models.fast.graphs import Graphs
from specbench.models.tensor_parallel.engine import Follower
from specbench.models.tensor_parallel.start import TeamSettings, start
from specbench.models.tensor_parallel.team import Op

NODES = 64


class Dawdling(Follower):
    """Sleeps for a random while before everything it does."""

    def obey(self, op, lists):
        time.sleep(random.Random().uniform(0, 0.01))
        super().obey(op, lists)


class Forgetful(Follower):
    """Does not move what was accepted, of one request or of several."""

    def keep(self, rows):
        """Nothing."""

    def obey(self, op, lists):
        super().obey(op, lists)
        if op is Op.BATCH:
            self.batched.move = lambda *_: None


class Twisted(Follower):
    """Has other embeddings."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.compact.embedding = self.compact.embedding * 1.001


class Narrow(Follower):
    """Feeds one row less than requested."""

    def step(self, numbers, taps, moves, tokens, parents):
        super().step(numbers, taps, moves, tokens[:-1], parents[:-1])


class Failing(Follower):
    """Fails at its third step."""

    steps = 0

    def step(self, *lists):
        self.steps += 1
        if self.steps == 3:
            raise ValueError("asked to fail")
        super().step(*lists)


class Dying(Failing):
    """Is gone at its third step, without a word."""

    def step(self, *lists):
        if self.steps == 2:
            os._exit(9)
        super().step(*lists)


class Recorder(Graphs):
    """Calls as a GPU does: twice to record, once to replay. So ranks that record at different times
    lose each other.
    """

    @property
    def capturing(self) -> bool:
        return True

    def run(self, key, call):
        if key not in self._recorded:
            call()
            self._recorded[key] = (None, call())
        return call()


class Recording(Follower):
    """Uses a ``Recorder``."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.graphs = Recorder(self.device)


class Plain(Follower):
    """Must not have our kernels."""

    attentions = ("sdpa",)

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        if self.attention not in self.attentions:
            raise ValueError(f"has {self.attention}")


class Fused(Plain):
    """Must have them."""

    attentions = ("fused",)


class Passing(TeamSettings):
    """The kernels pass the check on every share, which is not run."""

    def explain_unfused(self, share):
        return None


class Unsound(TeamSettings):
    """They fail it on rank 1's share."""

    def explain_unfused(self, share):
        return "the kernels are wrong here" if self.rank == 1 else None


def card_of(model, name: str = "m") -> ModelCard:
    dtype = str(model.dtype).removeprefix("torch.")
    return ModelCard(name, "random", model.config, None, 512, frozenset(), dtype, "cpu")


@contextlib.contextmanager
def team(model, ranks: int = 2, **terms):
    """(engine, whole model) of a seeded random model that ``ranks`` processes hold."""
    engine, whole, _ = start(TeamSettings(card_of(model), ranks, NODES, threads=1, **terms))
    try:
        yield engine, whole
    finally:
        engine.close()
        assert not any(process.is_alive() for process in engine._ranks.processes)
        assert not torch.distributed.is_initialized()
