"""What the client of a server costs this process: CPU time an event that comes in, the server being another process."""

from __future__ import annotations

import itertools
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.decode.elsewhere import RemoteServer
from specbench.decode.loop import Request
from specbench.decode.together import SharedRequest
from specbench.method import Method, Remote
from specbench.serving.elsewhere import serve_elsewhere
from specbench.serving.scheduler import Served, Stretch

ROOM = 1 << 20  # [tokens] of a request: more than any server's context


@dataclass(frozen=True, slots=True)
class ClientCost:
    """requests: at once. events: that came in, of tokens. cpu_s: user and system time of this process meanwhile."""

    requests: int
    events: int
    tokens: int
    wall_s: float
    cpu_s: float

    def __str__(self) -> str:
        """A row of a Markdown table, see ``HEADER``."""
        each_us, share = 1e6 * self.cpu_s / self.events, self.cpu_s / self.wall_s
        return f"| {self.requests} | {self.events} | {self.events / self.wall_s:.0f} | {each_us:.0f} | {share:.1%} |"


HEADER = "| requests at once | events | events a second | CPU us an event | of a core |\n|--:|--:|--:|--:|--:|"


@dataclass(frozen=True, slots=True)
class _Question:
    method: Method
    prompt: Sequence[int]
    limit: int

    def request(self) -> Request:
        return Request(self.prompt, self.limit, None, 0)

    def close(self, shared: SharedRequest) -> None:
        if shared.error is not None:
            raise shared.error


def measure_client(
    method: Remote, prompts: Sequence[Sequence[int]], limit: int, requests: int, answers: int
) -> ClientCost:
    """Ask a closed loop of ``requests`` until so many answers have ended, as a run under load does.

    method: bound to its server. limit: [tokens] of an answer. Raises CaseError where a request fails.
    """
    questions = (_Question(method, prompt, limit) for prompt in itertools.cycle(prompts))
    method.prepare(alone=False)
    start_s, cpu_s = time.perf_counter(), _cpu_s()
    served = method.run(_ask(questions, Stretch(requests, 0, answers)))
    wall_s, cpu_s = time.perf_counter() - start_s, _cpu_s() - cpu_s
    bursts = [tokens for visit in served.visits for _, tokens in visit.admitted.bursts]
    return ClientCost(requests, len(bursts), sum(bursts), wall_s, cpu_s)


async def _ask(questions: Iterator[_Question], stretch: Stretch) -> Served:
    server = RemoteServer(frozenset(), ROOM)
    try:
        return await serve_elsewhere(server, questions, None, stretch)
    finally:
        await server.end()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
