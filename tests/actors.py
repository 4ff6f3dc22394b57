"""Actors for tests of the port: known by name, so that a process can build them; and drafting ones
that dawdle.
"""

from __future__ import annotations

import inspect
import os
import random
import time

from torch.backends.cuda import cudnn_sdp_enabled

from methods.card import CardActor
from methods.pearl import PearlActor
from methods.saguaro import SaguaroActor
from specbench.types import InputError


class Diary:
    """Repeats its input in order; can be slow, fail, hang or die."""

    def __init__(self, name: str) -> None:
        self.name, self.seen = name, []

    def note(self, value):
        self.seen.append(value)
        return [self.name, value, len(self.seen)]

    def slow(self, seconds, value):
        time.sleep(seconds)
        return self.note(value)

    def fail(self):
        raise ValueError("asked to")

    def die(self):
        os._exit(7)

    def sees_cudnn(self):
        return cudnn_sdp_enabled()


def broken(kind: str):
    """A build that cannot be done."""
    raise InputError("draft=x: not there") if kind == "input" else RuntimeError("no room")


class _DiesOnce:
    """Ends its process in the middle of the request with the prompt [13, ...]."""

    def open(self, number, alive, context, seed):
        self.doomed = context[0] == 13
        return super().open(number, alive, context, seed)

    def tell(self, number, verb, *given):
        if self.doomed and verb in ("expand", "extend"):
            os._exit(7)
        return super().tell(number, verb, *given)


class MortalCard(_DiesOnce, CardActor):
    """CARD's."""


class MortalPearl(_DiesOnce, PearlActor):
    """PEARL's."""


def _dawdle(actor: object, verb: str) -> None:
    time.sleep(random.Random(f"{verb}{id(actor)}{time.perf_counter()}").uniform(0, 0.01))


class _Dawdles:
    """With a random delay before each answer."""

    def tell(self, number, verb, *given):
        _dawdle(self, verb)
        return super().tell(number, verb, *given)


class DawdlingCard(_Dawdles, CardActor):
    """CARD's."""


class DawdlingPearl(_Dawdles, PearlActor):
    """PEARL's."""


class DawdlingSaguaro(_Dawdles, SaguaroActor):
    """Saguaro's."""


class DelayedPort:
    """A port whose caller dawdles too."""

    def __init__(self, port) -> None:
        self._port = port

    def post(self, verb, *arguments):
        _dawdle(self, verb)
        return self._port.post(verb, *arguments)

    def take(self, ticket):
        _dawdle(self, "take")
        return self._port.take(ticket)

    def ask(self, verb, *arguments):
        return self.take(self.post(verb, *arguments))

    def __getattr__(self, name):
        return getattr(self._port, name)


def inline_actor(port):
    """The actor behind an inline port."""
    return inspect.getgeneratorlocals(port._channel._answers)["actor"]
