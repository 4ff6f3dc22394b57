"""The schedule of requests to a server elsewhere, which decides itself whose forwards are shared.

Who comes when, the ramp and what is measured are those of ``specbench.serving.scheduler``; a forward is a burst of
tokens of one request here. Requests that are in flight when the last measured one ends are awaited before the next
stretch begins.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from specbench.serving.scheduler import NEVER, Admission, Served, Service, Stretch


class Asking(Protocol):
    """A request to a server elsewhere. bursts: when each came [s], and its tokens. end_s: of the answer or failure."""

    done: bool
    end_s: float
    bursts: Sequence[tuple[float, int]]


class ServerElsewhere(Admission, Protocol):
    """What serves them; ``admit`` sends a request."""

    async def wait(self, until_s: float) -> None:
        """Return when a request has ended, or at this time."""

    async def drain(self) -> None:
        """Return when all have ended."""


async def serve_elsewhere(
    server: ServerElsewhere, questions: Iterator[Any], arrivals: Iterator[float] | None, stretch: Stretch
) -> Served:
    """One stretch; see ``serve``."""
    return await _Elsewhere(server, questions, arrivals, stretch).run()


class _Elsewhere(Service):
    _server: ServerElsewhere

    async def run(self) -> Served:
        while self._left > 0:
            self._admit()
            for visit in self._reading:  # sent as soon as it was admitted
                visit.begin_s = self._server.now()
            self._decoding += self._reading
            self._reading.clear()
            await self._server.wait(self._next_s if self._free else NEVER)
            ended = [visit for visit in self._decoding if visit.admitted.done]
            self._decoding = [visit for visit in self._decoding if not visit.admitted.done]
            for visit in ended:
                self._end(visit, visit.admitted.end_s)
        await self._server.drain()
        return _enter_bursts(self._served)


def _enter_bursts(served: Served) -> Served:
    """The bursts of all requests in order, and how many requests were in flight at each; rows are not known."""
    begun = sorted(visit.begin_s for visit in served.visits)
    ended = sorted(visit.admitted.end_s for visit in served.visits)
    bursts = sorted(
        (at, number, place, tokens)
        for number, visit in enumerate(served.visits)
        for place, (at, tokens) in enumerate(visit.admitted.bursts)
    )
    for visit in served.visits:
        visit.forwards = []
        visit.first_s = visit.admitted.bursts[0][0] if visit.admitted.bursts else visit.admitted.end_s
    for at, number, place, tokens in bursts:
        if place:
            forwards = served.visits[number].forwards
            assert isinstance(forwards, list)
            forwards.append(len(served.ends_s))
        served.ends_s.append(at)
        served.emitted.append(tokens - (place == 0))  # the first token stands apart
        served.requests.append(bisect_right(begun, at) - bisect_left(ended, at))
        served.rows.append(0)
    return served
