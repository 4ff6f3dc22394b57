"""Decodes the blocks of a plan under load: in a block, every method serves the same cases in its
own stretch of time.

The cases of the ramp run before the measured cases of a stretch, and others after them until all
measured cases have ended, or the stretch is given up because its queue only grows. Both are cases
of the suite; a method that keeps state learns from them too, but they have no record.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
import torch

from specbench.decode.budgets import make_budgets
from specbench.decode.loop import Request
from specbench.decode.together import SharedLaps, SharedRequest, SharedServer, boundary
from specbench.measure.clock import Meter, without_collector
from specbench.measure.plan import Block
from specbench.method import Method, Remote
from specbench.models.engine import Engine
from specbench.records.record import CaseRecord, TurnLoad
from specbench.runs.entry import Entry
from specbench.runs.job import Job, seed_arrivals
from specbench.runs.session import Session, fail, record_of
from specbench.runs.sources import Stage, Turn
from specbench.serving.remote import RemoteServer, serve_remote
from specbench.serving.scheduler import NEVER, QueueGrew, Served, Stretch, Visit, serve
from specbench.serving.settings import LoadConfig, find_limits, find_patience, make_arrivals
from specbench.suite.number import is_right
from specbench.types import Case, InputError

log = logging.getLogger(__name__)
PRIVATE = ("turn", "case")  # reset policies under which no request sees what another one taught


@dataclass(slots=True)
class SharedTurn:
    """A turn of a case, as the request of a shared server (``specbench.decode.together.Question``).

    method: a copy for this case alone, or the one that all cases share. limit: of the answer, as
    its arrival recorded it. answers: of the turns before.
    """

    session: LoadSession
    block: Block
    case: Case
    entry: Entry
    method: Method
    limit: int | None = None
    number: int = 0
    answers: tuple[str, ...] = ()
    asked: Turn | None = None
    shared: SharedRequest | None = None

    def request(self) -> Request:
        """Returns the request. It is called at the admission of the turn, when a replay engine
        loads the answer.
        """
        if self.entry.reset == "turn" or (self.entry.reset == "case" and not self.number):
            self.method.reset()
        self.asked = self.session.next_turn(self.case, self.answers)
        names = (self.case.id, self.number, self.block.round)
        request = self.session.request(self.asked, names, self.block, self.method)
        return (
            request
            if self.limit is None
            else replace(request, limit=min(request.limit, self.limit))
        )

    def close(self, shared: SharedRequest) -> SharedTurn | None:
        """Returns the next turn of the case. After the last one, its method is free for another
        case.
        """
        self.shared = shared
        if shared.error is None and self.number + 1 < len(self.case.turns):
            with boundary(shared):
                return self.follow()
        self.session.free.append(self.method)
        return None

    def follow(self) -> SharedTurn:
        """Returns the next turn of the case, with the answers so far."""
        assert self.asked is not None
        assert self.shared is not None
        answers = (*self.answers, self.session.text(self.asked, self.shared.transcript))
        return replace(self, number=self.number + 1, answers=answers, asked=None, shared=None)


class LoadSession(Session):
    """A session whose blocks are stretches of requests that share forwards."""

    def __init__(self, job: Job, stage: Stage, meter: Meter | None = None) -> None:
        """The load is that of the job; ramps are taken from the cases of its suite. Raises
        InputError.
        """
        super().__init__(job, stage, meter)
        self.load = job.config.load
        self._cases = job.source.suite.cases
        require_memory(self.load, self._engine)

    def _block(self, block: Block, check: bool) -> list[CaseRecord]:
        if block.index < 0:  # of the warm-up
            return super()._block(block, check)
        records: list[CaseRecord] = []
        prompts: dict[tuple[str, str], list[list[int]]] = {}
        for place, name in enumerate(block.order):
            with without_collector(freeze=True):
                records += self._stretch(block, place, self._entries[name], prompts)
        for case in block.cases if check else ():
            own = [record for record in records if record.case == case.id]
            asked = {record.method: prompts.get((record.method, case.id), []) for record in own}
            self._check(case, own, asked)
        return records

    def _stretch(
        self,
        block: Block,
        place: int,
        entry: Entry,
        prompts: dict[tuple[str, str], list[list[int]]],
    ) -> list[CaseRecord]:
        """Returns the records of one method. An error that is not one request's fails all of
        them.
        """
        records = {case.id: record_of(block, case, place, entry.name) for case in block.cases}
        try:
            served = self._serve(block, entry)
            ended = [visit for visit in served.measured() if visit.end_s < NEVER]
            about = served.summary() if ended else None
            for visit in ended:
                turn: SharedTurn = visit.question
                record = records[turn.case.id]
                record.stretch = about
                self._enter(record, turn, visit, served)
                prompts.setdefault((entry.name, turn.case.id), []).append(
                    turn.asked.prompt if turn.asked else []
                )
            for case in block.cases if served.given_up else ():
                record = records[case.id]
                if record.error is None and len(record.turns) < len(case.turns):
                    fail(
                        record,
                        QueueGrew(
                            f"an arrival waited for more than {find_patience(self.load):.3g} s"
                        ),
                    )
            for record in records.values():
                record.state_bytes = int(entry.method.state_bytes())
                CaseRecord.from_json(record.to_json())
        except Exception as error:
            # the boundary of a stretch: recorded with its traceback, excluded visibly
            for record in records.values():
                fail(record, error)
        return list(records.values())

    def _enter(self, record: CaseRecord, turn: SharedTurn, visit: Visit, served: Served) -> None:
        """Adds a turn to its record, with the times of the schedule."""
        shared = turn.shared
        assert shared is not None
        shared.count()  # here, as the other requests of the stretch do not wait for it
        if shared.error is not None:
            fail(record, shared.error)
            return
        assert turn.asked is not None
        ends = np.array([visit.first_s, *(served.ends_s[place] for place in visit.forwards)])
        out = shared.transcript
        out.prefill_s, out.decode_s = visit.first_s - visit.begin_s, visit.end_s - visit.first_s
        forwards, steps = visit.forwards, len(out.accept)
        if len(forwards) == steps:
            out.step_s = [round(float(seconds), 7) for seconds in np.diff(ends)]
        elif forwards:  # a remote server, whose bursts are not steps: the load at that time
            forwards = [forwards[place * len(forwards) // steps] for place in range(steps)]
        count = steps - len(forwards)  # all in one burst
        load = TurnLoad(
            arrival_s=visit.arrival_s,
            queue_s=max(0.0, visit.begin_s - visit.arrival_s),
            requests=[served.requests[place] for place in forwards] + [1] * count,
            rows=[served.rows[place] for place in forwards] + [0] * count,
        )
        if len(visit.forwards) != steps:
            load["burst_s"] = round(float(np.diff(ends).max(initial=0.0)), 7)
        text = self.text(turn.asked, out)
        record.turns.append(self._record(record.method, turn.asked, out, text, load=load))
        record.correct = is_right(turn.case, self._answer(record.turns[-1]))

    def _serve(self, block: Block, entry: Entry) -> Served:
        load, engine = self.load, self._engine
        others, shared = load.requests - 1, entry.reset not in PRIVATE  # one state per request
        states = [
            entry.method,
            *(entry.method if shared else entry.method.private() for _ in range(others)),
        ]
        self.free = deque(method for method in states if method is not None)
        places = len(self.free)
        stretch = Stretch(places, load.before, len(block.cases), load.chunk, find_patience(load))
        arrivals = make_arrivals(load, seed_arrivals(self._decode, block.place), block.place)
        questions = self._questions(block, entry)
        if isinstance(entry.method, Remote):
            entry.method.prepare(alone=False)
            remote = RemoteServer(engine.eos, load.tokens or engine.context, entry.method)
            return entry.method.run(serve_remote(remote, questions, arrivals, stretch))
        laps = SharedLaps()
        batch = engine.batch(places, load.tokens or engine.context, laps)
        try:
            if entry.name not in self._budgets:  # a policy learns over all stretches
                own = make_budgets(load.budget, load.nodes or engine.max_nodes)
                self._budgets[entry.name] = self._limit(own, self._profile) or own
            server = SharedServer(
                batch, laps, engine.eos, engine.max_nodes, self._budgets[entry.name]
            )
            with torch.inference_mode():  # each step would enter it
                return serve(server, questions, arrivals, stretch)
        finally:
            batch.end()

    def _questions(self, block: Block, entry: Entry) -> Iterator[Any]:
        """The cases before the block, its own, and those after it, around the suite without end."""
        first = next(place for place, case in enumerate(self._cases) if case.id == block.case.id)
        limits: Iterator[int | None] = find_limits(self.load, block.place) or itertools.repeat(None)
        for place, limit in zip(itertools.count(first - self.load.before), limits, strict=False):
            case = self._cases[place % len(self._cases)]
            yield SharedTurn(self, block, case, entry, self.free.popleft(), limit)


def require_memory(load: LoadConfig, engine: Engine) -> None:
    """Raise InputError if memory is too small for the requests of a load, before anything is
    decoded.
    """
    tokens = load.tokens or engine.context
    try:
        batch = engine.batch(load.requests, tokens)
        size, left = batch.nbytes(), psutil.virtual_memory().available
        batch.end()
        if engine.device.type != "cpu" or size <= left:
            return
    except RuntimeError as error:  # torch's, of every device's memory
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
    raise InputError(
        f"load.requests={load.requests}: there is no memory for so many requests of {tokens} tokens"
        f" each; expected fewer, or load.tokens below {tokens}"
    )
