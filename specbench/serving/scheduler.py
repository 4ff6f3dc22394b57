"""The schedule of a server that serves several requests: admit, read prompts in chunks, one forward
for all, repeat.

It knows neither model nor clock: a ``Server`` has both. The
latency of a request counts from its intended arrival. The first requests of a stretch (the ramp)
are not measured; after the last measured one requests keep arriving until all that are measured
have ended, so that nothing is measured while the server empties.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from specbench.records.record import CaseRecord, StretchRecord

NEVER = float("inf")


class QueueGrew(Exception):
    """An arrival waited for a place longer than the patience of its stretch; the requests that are
    left have no end.
    """

    @classmethod
    def ended(cls, record: CaseRecord) -> bool:
        """Whether a record's case has no end because of it."""
        return record.error is not None and record.error["type"] == cls.__name__


class Server(Protocol):
    """The interface of an engine that serves requests.

    A request that is admitted has ``unread`` [tokens] of its prompt, and ``done``: it ended or
    failed.
    """

    def now(self) -> float:
        """[s] since the start of the stretch."""

    def admit(self, question: Any) -> Any:
        """Take a request in; nothing is computed."""

    def leave(self, admitted: Any) -> Any:
        """Free the place of a request that ended. Returns what the same user asks next, None for
        nothing.
        """

    def wait(self, until_s: float) -> None:
        """Let time pass while nothing can be computed."""

    def read(self, admitted: Any, tokens: int) -> float | None:
        """Read this many tokens of the prompt. Returns when the first token of the answer came [s],
        None = not yet.
        """

    def step(self, requests: Sequence[Any]) -> tuple[int, int, bool]:
        """Run one forward for all; returns its rows, the tokens emitted, and whether a request
        ended or failed.
        """


@dataclass(slots=True)
class Visit:
    """One request's stay. Times are in seconds since the start of the stretch, NEVER for what did
    not happen.
    """

    question: Any
    measured: bool
    arrival_s: float
    admitted: Any = None
    begin_s: float = NEVER  # its prompt begins to be read
    first_s: float = NEVER  # its first token
    end_s: float = NEVER
    forwards: range | list[int] = range(0)  # those that it took part in


@dataclass(slots=True)
class Served:
    """The record of a stretch. The lists have one entry per forward: when it ended [s], its
    requests, rows, tokens.

    visits: all, in order of admission; those that were not measured may not have ended. gauges:
    readings of a remote server, each with its time [s] and its figures by name. given_up: an
    arrival waited for longer than the stretch's patience, so that measured ones may not have ended,
    or not have been admitted.
    """

    visits: list[Visit] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    gauges: Sequence[tuple[float, Mapping[str, float]]] = ()
    given_up: bool = False

    def measured(self) -> list[Visit]:
        """The measured visits."""
        return [visit for visit in self.visits if visit.measured]

    def window(self) -> tuple[float, float]:
        """Return the first measured arrival and the last measured end [s]."""
        own = self.measured()
        return min(visit.arrival_s for visit in own), max(
            visit.end_s for visit in own if visit.end_s < NEVER
        )

    def summary(self) -> StretchRecord:
        """The sums of the measured part."""
        begin, end = self.window()
        inside = [place for place, at in enumerate(self.ends_s) if begin < at <= end]
        sums = [
            sum(values[place] for place in inside)
            for values in (self.emitted, self.requests, self.rows)
        ]
        first = sum(begin < visit.first_s <= end for visit in self.visits)
        record = StretchRecord(
            seconds=end - begin,
            tokens=sums[0] + first,
            forwards=len(inside),
            requests=sums[1],
            rows=sums[2],
        )
        readings: defaultdict[str, list[float]] = defaultdict(list)
        for at, figures in self.gauges:
            for name, value in figures.items() if begin <= at <= end else ():
                readings[name].append(value)
        if readings:
            record["gauges"] = {
                name: [sum(own) / len(own), max(own)] for name, own in readings.items()
            }
        return record


@dataclass(frozen=True, slots=True)
class Stretch:
    """The plan of a stretch."""

    places: int  # concurrent requests
    ramp: int  # first arrivals that are not measured
    measured: int  # arrivals after them, which are
    # [tokens] of prompts that are read between two forwards; 0 = every waiting prompt, completely
    chunk: int = 0
    # [s] that an arrival may wait for a place; after it the stretch is given up
    patience_s: float = NEVER


def serve(
    server: Server, questions: Iterator[Any], arrivals: Iterator[float] | None, stretch: Stretch
) -> Served:
    """One stretch. questions: without end. arrivals: [s] intended; None = as soon as a place is
    free (closed loop).
    """
    return _Shared(server, questions, arrivals, stretch).run()


class Service:
    """One stretch on a server: which request is admitted when, when a place is free again, and when
    it is given up.
    """

    def __init__(
        self,
        server: Any,
        questions: Iterator[Any],
        arrivals: Iterator[float] | None,
        stretch: Stretch,
    ) -> None:
        self._server, self._questions, self._arrivals, self._stretch = (
            server,
            questions,
            arrivals,
            stretch,
        )
        self._free = deque([server.now()] * stretch.places)  # since when each place is
        self._next_s = next(arrivals) if arrivals else NEVER
        self._came = 0
        self._left = stretch.measured  # conversations that have not ended
        self._waiting: deque[Visit] = deque()  # their users have a place already
        self._reading: deque[Visit] = deque()
        self._decoding: list[Visit] = []
        self._admitted: list[Any] = []  # their requests, which a step need not collect again
        self._served = Served()

    def _gives_up(self) -> bool:
        """Whether the next arrival has waited for longer than the patience of the stretch."""
        self._served.given_up = self._server.now() - self._next_s > self._stretch.patience_s
        return self._served.given_up

    def _admit(self) -> None:
        """Admit next turns of users first, then arrivals while there are places."""
        while self._waiting:
            self._enter(self._waiting.popleft())
        while self._free:
            if self._arrivals is None:
                arrival_s = self._free.popleft()
            elif self._next_s <= self._server.now():
                self._free.popleft()
                arrival_s, self._next_s = self._next_s, next(self._arrivals, NEVER)
            else:
                return
            begun = self._came - self._stretch.ramp
            self._came += 1
            self._enter(
                Visit(next(self._questions), 0 <= begun < self._stretch.measured, arrival_s)
            )

    def _enter(self, visit: Visit) -> None:
        visit.admitted = self._server.admit(visit.question)
        self._served.visits.append(visit)
        self._reading.append(visit)

    def _end(self, visit: Visit, end_s: float | None = None) -> None:
        """End a visit: its user asks the next question, or its place is free."""
        visit.end_s = self._server.now() if end_s is None else end_s
        follow = self._server.leave(visit.admitted)
        if follow is not None:
            self._waiting.append(Visit(follow, visit.measured, visit.end_s))
            return
        self._free.append(visit.end_s)
        self._left -= visit.measured


class _Shared(Service):
    """Requests share the forwards of a server that runs here."""

    def run(self) -> Served:
        while self._left > 0:
            self._admit()
            if self._gives_up():
                break
            if self._reading:
                self._read()
            if self._decoding:
                self._step()
            elif not (self._reading or self._waiting or (self._free and self._arrivals is None)):
                self._server.wait(self._next_s)
        return self._served

    def _read(self) -> None:
        """A chunk of the prompts that wait, the first one first."""
        room = self._stretch.chunk or NEVER
        while self._reading and room > 0:
            visit = self._reading[0]
            admitted, before = visit.admitted, visit.admitted.unread
            if visit.begin_s == NEVER:
                visit.begin_s = self._server.now()
            first_s = None if admitted.done else self._server.read(admitted, int(min(room, before)))
            room -= before - admitted.unread
            if admitted.done or not admitted.unread:
                self._reading.popleft()
                visit.first_s = NEVER if first_s is None else first_s  # None: it failed
                start = len(self._served.ends_s)
                visit.forwards = range(start, start)
                if admitted.done:
                    self._end(visit)
                else:
                    self._decoding.append(visit)
                    self._admitted.append(admitted)

    def _step(self) -> None:
        served, active = self._served, self._decoding
        rows, emitted, ends = self._server.step(self._admitted)
        served.ends_s.append(self._server.now())
        served.rows.append(rows)
        served.requests.append(len(active))
        served.emitted.append(emitted)
        if ends:
            self._decoding = [visit for visit in active if not visit.admitted.done]
            self._admitted = [visit.admitted for visit in self._decoding]
            for visit in (each for each in active if each.admitted.done):
                assert isinstance(visit.forwards, range)
                visit.forwards = range(visit.forwards.start, len(served.ends_s))
                self._end(visit)
