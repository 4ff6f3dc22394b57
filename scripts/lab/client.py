"""What the client of a server costs: CPU time of this process for an event that arrives, at several requests at once.

    python -m scripts.lab client --requests 1,4,16
    python -m scripts.lab client --url http://HOST:8000 --tokenizer DIR --profile

Without --url the server is the tests' stand-in in another process, which sends an event each 10 ms to each request.
The client is that of a run under load (load=closed). --profile: where the time goes, by function.
"""

from __future__ import annotations

import contextlib
import cProfile
import itertools
import pstats
import resource
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.lab.materials import print_head, print_row
from specbench.decode.loop import Request
from specbench.decode.together import SharedRequest
from specbench.input import counts
from specbench.method import Method, Remote
from specbench.models.facade import Target
from specbench.runs.job import job_of
from specbench.serving.remote import RemoteServer, serve_remote
from specbench.serving.scheduler import Served, Stretch

STAND_IN = Path(__file__).resolve().parents[2] / "tests/stand_in.py"
STEP_S = "0.01"
SHOWN = 20  # functions of a profile
ROOM = 1 << 20  # [tokens] of a request: more than any server's context


def add_options(parser: ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--requests", type=counts, default=(1, 4, 16), help="at once")
    parser.add_argument("--answers", type=int, default=16, help="for each request at once")
    parser.add_argument("--limit", type=int, default=200, help="[tokens] of an answer")
    parser.add_argument("--url", help="of a server that runs")
    parser.add_argument("--tokenizer", default="bundled:tiny", help="of its model")
    parser.add_argument("--profile", action="store_true")


def run(given: Namespace) -> None:
    """Print a row a number of requests."""
    with contextlib.ExitStack() as stack:
        url = given.url or stack.enter_context(_stand_in())
        job = job_of(["model=server", f"model.tokenizer={given.tokenizer}", f"method.vanilla.url={url}", "method=[]"])
        method = next(entry.method for entry in job.entries)
        assert isinstance(method, Remote)
        assert job.source.prompts is not None
        method.bind(Target(job.source.card, None, 64, None))
        stack.callback(method.close)
        prompts = [job.source.prompts.ids(case.turns[:1], []) for case in job.source.suite.cases]
        profile = stack.enter_context(cProfile.Profile()) if given.profile else None
        print_head("requests at once", "events", "events a second", "CPU us an event", "of a core", left=())
        for requests in given.requests:
            cost = measure_client(method, prompts, given.limit, requests, given.answers * requests)
            rate, each_us, share = cost.events / cost.wall_s, 1e6 * cost.cpu_s / cost.events, cost.cpu_s / cost.wall_s
            print_row(requests, cost.events, f"{rate:.0f}", f"{each_us:.0f}", f"{share:.1%}")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(SHOWN)


@contextlib.contextmanager
def _stand_in() -> Iterator[str]:
    """Start the stand-in in another process; gives its URL."""
    command = [sys.executable, str(STAND_IN), STEP_S]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


@dataclass(frozen=True, slots=True)
class ClientCost:
    """What a closed loop cost. events: that arrived, with ``tokens``. cpu_s: user and system time of this process."""

    events: int
    tokens: int
    wall_s: float
    cpu_s: float


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
    """Ask a closed loop of requests until enough answers have ended, as a run under load does.

    Args:
        method: bound to its server.
        prompts: asked in turn, again and again.
        limit: [tokens] of an answer.
        requests: at once.
        answers: that have to end.

    Raises:
        CaseError: a request fails.
    """
    questions = (_Question(method, prompt, limit) for prompt in itertools.cycle(prompts))

    async def ask() -> Served:
        server = RemoteServer(frozenset(), ROOM)
        try:
            return await serve_remote(server, questions, None, Stretch(requests, 0, answers))
        finally:
            await server.end()

    method.prepare(alone=False)
    start_s, cpu_s = time.perf_counter(), _cpu_s()
    served = method.run(ask())
    wall_s, cpu_s = time.perf_counter() - start_s, _cpu_s() - cpu_s
    bursts = [tokens for visit in served.visits for _, tokens in visit.admitted.bursts]
    return ClientCost(len(bursts), sum(bursts), wall_s, cpu_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
