"""Requests to a server elsewhere, several at once, behind the schedule's interface.

What raises in one request ends that request and no other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from specbench.decode.loop import derive_seed
from specbench.decode.together import Question, SharedRequest, boundary
from specbench.method import Remote
from specbench.types import CaseError


@dataclass(slots=True)
class RemoteRequest(SharedRequest):
    """bursts: when each came [s], and its tokens. end_s: of the answer, or of its failure."""

    bursts: list[tuple[float, int]] = field(default_factory=list)
    end_s: float = float("inf")


class RemoteServer:
    """See ``specbench.serving.elsewhere.ServerElsewhere``."""

    def __init__(self, eos: frozenset[int], tokens: int) -> None:
        """tokens: that a request has room for."""
        self._eos, self._tokens = eos, tokens
        self._tasks: set[asyncio.Task[None]] = set()
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    async def wait(self, until_s: float) -> None:
        left = None if until_s == float("inf") else max(0.0, until_s - self.now())
        if self._tasks:
            _, self._tasks = await asyncio.wait(self._tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(left or 0.0)

    async def drain(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def end(self) -> None:
        """Break off what is left."""
        for task in self._tasks:
            task.cancel()
        await self.drain()

    def admit(self, question: Question) -> RemoteRequest:
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
                f"prompt of {len(prompt)} tokens; expected fewer than the {self._tokens} that a request has room for"
                " (leave the case out, or raise load.tokens or model.context)"
            )
        limit = min(request.limit, room)

        def emit(ids: Sequence[int], proposed: int = 0) -> bool:
            shared.bursts.append((self.now(), len(ids)))
            return False

        settle = await method.answer(prompt, limit, derive_seed(request.seed, *request.names, "verify"), emit)
        out = shared.transcript
        out.enter(settle(), self._eos, limit)
        if not out.ids:
            raise CaseError(f"{type(method).__name__} emitted nothing; expected at least the prefill's token")
        out.end(self._eos, cut_short=limit < request.limit)
        self._fit(shared)

    def _fit(self, shared: RemoteRequest) -> None:
        """An EOS that the server keeps to itself belongs to the last burst.

        A text's tokens are known in the end: as even over its bursts as they can be.
        """
        ids, bursts = shared.transcript.ids, shared.bursts
        count, told = len(ids), sum(tokens for _, tokens in bursts)
        if bursts and told == count - 1 and ids[-1] in self._eos:
            at, tokens = bursts[-1]
            bursts[-1], told = (at, tokens + 1), count
        if told == count:
            return
        ends = [count * (place + 1) // len(bursts) for place in range(len(bursts))]
        shared.bursts = [(at, end - start) for (at, _), start, end in zip(bursts, [0, *ends], ends, strict=False)]

    def leave(self, shared: RemoteRequest) -> Question | None:
        return shared.question.close(shared)
