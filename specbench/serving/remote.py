"""Concurrent requests to a server that is not ours, and their schedule: the server decides what
shares a forward.

Arrivals, the ramp and the measured part are those of ``specbench.serving.scheduler``; a forward is
a burst of tokens of one request here. Requests that are in flight when the last measured one ends
are awaited before the next stretch begins; those of a stretch that is given up are cancelled. What
raises in one request ends that request and no other.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.decode.loop import derive_seed
from specbench.decode.together import Question, SharedRequest, boundary
from specbench.method import Remote
from specbench.serving.scheduler import Served, Service, Stretch
from specbench.types import CaseError


@dataclass(slots=True)
class RemoteRequest(SharedRequest):
    """bursts: when each came [s], and its tokens. end_s: of the answer, or of its failure."""

    bursts: list[tuple[float, int]] = field(default_factory=list)
    end_s: float = float("inf")


GAUGE_S = 1.0  # between two readings of what a server reports of itself


class RemoteServer:
    """Sends requests to the servers of their methods, and waits for the answers."""

    def __init__(self, eos: frozenset[int], tokens: int, watched: Remote | None = None) -> None:
        """tokens: the capacity of a request, prompt and answer. watched: the method whose server is
        observed.
        """
        self._watched = watched
        self._eos, self._tokens = eos, tokens
        self._tasks: set[asyncio.Task[None]] = set()
        self._start = time.perf_counter()
        self.gauges: list[tuple[float, Mapping[str, float]]] = []  # [s], and figures by name

    def now(self) -> float:
        """[s] since the start of the stretch."""
        return time.perf_counter() - self._start

    async def wait(self, until_s: float) -> None:
        """Return when a request has ended, or at this time."""
        left = None if until_s == float("inf") else max(0.0, until_s - self.now())
        if self._tasks:
            _, self._tasks = await asyncio.wait(
                self._tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
        else:
            await asyncio.sleep(left or 0.0)

    async def drain(self) -> None:
        """Return when all requests have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def watch(self) -> None:
        """Note what the server reports of itself, until cancelled."""
        while self._watched is not None:
            if found := await self._watched.gauges():
                self.gauges.append((self.now(), found))
            await asyncio.sleep(GAUGE_S)

    async def end(self) -> None:
        """Cancel the requests that are left."""
        for task in self._tasks:
            task.cancel()
        await self.drain()

    def admit(self, question: Question) -> RemoteRequest:
        """Send a request."""
        shared = RemoteRequest(question)
        self._tasks.add(asyncio.create_task(self._ask(shared)))
        return shared

    async def _ask(self, shared: RemoteRequest) -> None:
        try:
            with boundary(shared):
                await self._answer(shared)
        finally:
            shared.end_s, shared.done = self.now(), True

    async def _answer(self, shared: RemoteRequest) -> None:
        shared.request = request = shared.question.request()
        prompt, method = request.prompt, shared.question.method
        assert isinstance(method, Remote)
        room = self._tokens - len(prompt)
        if room < 1:
            raise CaseError(
                f"prompt of {len(prompt)} tokens; expected fewer than the {self._tokens} that a"
                " request has room for (leave the case out, or raise load.tokens or model.context)"
            )
        limit = min(request.limit, room)

        def emit(ids: Sequence[int]) -> bool:
            shared.bursts.append((self.now(), len(ids)))
            return False

        seed = derive_seed(request.seed, *request.names, "verify")
        settle = await method.answer(prompt, limit, seed, emit, request.conversation)
        out = shared.transcript
        out.enter(settle(), self._eos, limit)
        if not out.ids:
            raise CaseError(
                f"{type(method).__name__} emitted nothing; expected at least the prefill's token"
            )
        out.end(self._eos, cut_short=limit < request.limit)
        self._fit(shared)

    def _fit(self, shared: RemoteRequest) -> None:
        """An EOS that the server keeps to itself belongs to the last burst.

        A text's tokens are known in the end: as even over its bursts as they can be.
        """
        ids, bursts = shared.transcript.ids, shared.bursts
        count, reported = len(ids), sum(tokens for _, tokens in bursts)
        if bursts and reported == count - 1 and ids[-1] in self._eos:
            at, tokens = bursts[-1]
            bursts[-1], reported = (at, tokens + 1), count
        if reported == count:
            return
        ends = [count * (place + 1) // len(bursts) for place in range(len(bursts))]
        shared.bursts = [
            (at, end - start) for (at, _), start, end in zip(bursts, [0, *ends], ends, strict=False)
        ]

    def leave(self, shared: RemoteRequest) -> Question | None:
        """Return what the same user asks next, None for nothing."""
        return shared.question.close(shared)


async def serve_remote(
    server: RemoteServer,
    questions: Iterator[Any],
    arrivals: Iterator[float] | None,
    stretch: Stretch,
) -> Served:
    """Serve one stretch; see ``specbench.serving.scheduler.serve``."""
    watch = asyncio.create_task(server.watch())
    try:
        served = await _RemoteService(server, questions, arrivals, stretch).run()
        served.gauges = server.gauges
        return served
    finally:
        watch.cancel()
        await server.end()


class _RemoteService(Service):
    _server: RemoteServer

    async def run(self) -> Served:
        while self._left > 0:
            self._admit()
            for visit in self._reading:  # sent as soon as it was admitted
                visit.begin_s = self._server.now()
            self._decoding += self._reading
            self._reading.clear()
            if self._gives_up():
                break
            await self._server.wait(
                self._next_s + (0.0 if self._free else self._stretch.patience_s)
            )
            ended = [visit for visit in self._decoding if visit.admitted.done]
            self._decoding = [visit for visit in self._decoding if not visit.admitted.done]
            for visit in ended:
                self._end(visit, visit.admitted.end_s)
        if not self._served.given_up:  # else the requests that are left are cancelled
            await self._server.drain()
        return _enter_bursts(self._served)


def _enter_bursts(served: Served) -> Served:
    """The bursts of all requests in order, and how many requests were in flight at each; rows are
    not known.
    """
    begun = sorted(visit.begin_s for visit in served.visits)
    ended = sorted(visit.admitted.end_s for visit in served.visits)
    bursts = sorted(
        (at, number, place, tokens)
        for number, visit in enumerate(served.visits)
        for place, (at, tokens) in enumerate(visit.admitted.bursts)
    )
    for visit in served.visits:
        visit.forwards = []
        visit.first_s = (
            visit.admitted.bursts[0][0] if visit.admitted.bursts else visit.admitted.end_s
        )
    for at, number, place, tokens in bursts:
        if place:
            forwards = served.visits[number].forwards
            assert isinstance(forwards, list)
            forwards.append(len(served.ends_s))
        served.ends_s.append(at)
        served.emitted.append(tokens - (place == 0))  # the first token is counted separately
        served.requests.append(bisect_right(begun, at) - bisect_left(ended, at))
        served.rows.append(0)
    return served
